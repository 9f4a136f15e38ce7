"""What values a configuration may hold: ranges and choices as tables, and the rules that tie options together.

Every message is one line that names the option, its value and what would fit. It runs before any process starts,
and imports no torch.
"""

from __future__ import annotations

import difflib
import glob
import operator
import os
from collections.abc import Callable, Iterator

from fault_tolerance.runtime.injection import PHASES, SIGNALS
from trainer.config import Config, ModelConfig, ParallelConfig

INFINITY = float("inf")

RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63 - 1),
    "model.vocab_size": (2, INFINITY),
    "model.hidden_size": (1, INFINITY),
    "model.intermediate_size": (1, INFINITY),
    "model.layers": (1, INFINITY),
    "model.heads": (1, INFINITY),
    "model.kv_heads": (1, INFINITY),
    "model.head_dim": (2, INFINITY),
    "model.rope_theta": (1, INFINITY),
    "model.norm_eps": (0, 1),
    "model.init_std": (0, INFINITY),
    "parallel.groups": (1, INFINITY),
    "parallel.tp": (1, INFINITY),
    "parallel.pp": (1, INFINITY),
    "parallel.dp_shard": (1, INFINITY),
    "parallel.micro_batches": (1, INFINITY),
    "parallel.pp_virtual_stages": (1, INFINITY),
    "parallel.bucket_mib": (1, INFINITY),
    "data.bpe_vocab_size": (257, INFINITY),
    "data.validation_fraction": (0, 0.5),
    "optim.lr": (0, INFINITY),
    "optim.min_lr_ratio": (0, 1),
    "optim.eps": (0, INFINITY),
    "optim.weight_decay": (0, INFINITY),
    "optim.grad_clip": (0, INFINITY),
    "optim.warmup_steps": (0, INFINITY),
    "optim.decay_steps": (1, INFINITY),
    "train.steps": (1, INFINITY),
    "train.global_batch": (1, INFINITY),
    "train.sequence_length": (2, INFINITY),
    "train.validation_every": (0, INFINITY),
    "train.validation_batches": (1, INFINITY),
    "train.log_every": (1, INFINITY),
    "train.max_bad_steps": (1, INFINITY),
    "checkpoint.every_steps": (0, INFINITY),
    "checkpoint.every_seconds": (0, INFINITY),
    "checkpoint.mtbf_seconds": (0, INFINITY),
    "checkpoint.restart_seconds": (0, INFINITY),
    "checkpoint.keep": (1, INFINITY),
    "checkpoint.smallest_part_mb": (0, INFINITY),
    "fault_tolerance.redundancy": (1, INFINITY),
    "fault_tolerance.timeout_seconds": (0.1, 86400),
    "fault_tolerance.max_restarts_without_progress": (0, INFINITY),
    "failures.mtbf_seconds": (1e-3, INFINITY),
    "failures.shape": (0.05, 20),
    "emulate.unit_seconds": (0, 3600),
    "emulate.reduce_seconds": (0, 3600),
    "emulate.restart_seconds": (0, 86400),
    "launch.threads_per_worker": (0, INFINITY),
}
"""Smallest and largest value of each number; an empty (null) option is not checked."""

CHOICES: dict[str, tuple[str, ...]] = {
    "device": ("auto", "cpu", "cuda"),
    "parallel.pp_schedule": ("gpipe", "1f1b", "interleaved_1f1b"),
    "data.source": ("python_stdlib", "text", "hf", "tokens"),
    "data.token_dtype": ("uint16", "uint32"),
    "optim.schedule": ("cosine", "wsd", "constant"),
    "train.dtype": ("auto", "float32", "bfloat16"),
    "fault_tolerance.backend": ("ckpt", "rep", "spare"),
    "fault_tolerance.granularity": ("shard", "micro_batch"),
    "fault_tolerance.placement": ("cyclic", "partition"),
    "fault_tolerance.solver": ("incremental", "networkx"),
    "failures.kind": ("none", "trace", "weibull"),
    "failures.unit": ("seconds", "steps"),
    "logging.wandb": ("disabled", "offline", "online"),
    "launch.mode": ("local", "controller", "worker"),
}
"""Values of each option that is an enumeration."""


def validate(config: Config) -> None:
    """Check ranges, choices and combinations.

    Raises:
        ValueError: the first option that does not fit; one line with what would.
    """
    for name, (low, high) in RANGES.items():
        _check_range(name, _value(config, name), low, high)
    for name, choices in CHOICES.items():
        check_choice(name, _value(config, name), choices)
    for rule in RULES:
        for problem in rule(config):
            raise ValueError(problem)


def validate_model(model: ModelConfig, parallel: ParallelConfig) -> None:
    """Check a model against the degrees; again after `model.hf` filled in the real sizes.

    Raises:
        ValueError: as `validate`.
    """
    for problem in _model_problems(model, parallel):
        raise ValueError(problem)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value outside of an enumeration.

    Raises:
        ValueError: with the choices and the nearest one.
    """
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"{name}={value}: one of {', '.join(choices)}{hint}")


def _value(config: Config, name: str) -> object:
    return operator.attrgetter(name)(config)


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if value is None:
        return
    assert isinstance(value, int | float)
    if not low <= value <= high:  # a NaN fails here too
        bounds = f"at least {low:g}" if high == INFINITY else f"from {low:g} to {high:g}"
        raise ValueError(f"{name}={value}: must be {bounds}")


def _divisors(*numbers: int) -> str:
    """The common divisors, for people."""
    return ", ".join(str(d) for d in range(1, min(numbers) + 1) if all(number % d == 0 for number in numbers))


def _optimizer(config: Config) -> Iterator[str]:
    betas = config.optim.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        yield f"optim.betas={betas}: two numbers from 0 to below 1, as [0.9,0.95]"


def _model(config: Config) -> Iterator[str]:
    if config.model.hf is None:
        yield from _model_problems(config.model, config.parallel)


def _model_problems(model: ModelConfig, parallel: ParallelConfig) -> Iterator[str]:
    if model.head_dim is None and model.hidden_size % model.heads:
        fits = _divisors(model.hidden_size)
        yield f"model.heads={model.heads}: must divide model.hidden_size={model.hidden_size} ({fits})"
    head_dim = model.head_dim or model.hidden_size // model.heads
    if head_dim % 2:
        yield f"model.head_dim={head_dim}: rotary embeddings need an even width of a head"
    if model.heads % model.kv_heads:
        yield f"model.kv_heads={model.kv_heads}: must divide model.heads={model.heads} ({_divisors(model.heads)})"
    shared = {name: getattr(model, name) for name in ("heads", "kv_heads", "vocab_size", "intermediate_size")}
    odd = [f"model.{name}={size}" for name, size in shared.items() if size % parallel.tp]
    if odd:
        fits = ", ".join(str(d) for d in range(1, model.kv_heads + 1) if all(n % d == 0 for n in shared.values()))
        yield f"parallel.tp={parallel.tp}: must divide {' and '.join(odd)}; with this model tp can be {fits}"
    stages = parallel.pp * parallel.pp_virtual_stages
    if stages > model.layers:
        chunks = f" x parallel.pp_virtual_stages={parallel.pp_virtual_stages}" if parallel.pp_virtual_stages > 1 else ""
        most = max(model.layers // parallel.pp_virtual_stages, 1)
        yield (
            f"parallel.pp={parallel.pp}{chunks}: needs {stages} layers, the model has model.layers={model.layers}; "
            f"pp can be at most {most}"
        )


def _schedule(config: Config) -> Iterator[str]:
    parallel = config.parallel
    interleaved = parallel.pp_schedule == "interleaved_1f1b"
    if interleaved and parallel.pp_virtual_stages < 2:
        yield f"parallel.pp_virtual_stages={parallel.pp_virtual_stages}: interleaved_1f1b needs 2 or more"
    if interleaved and parallel.pp < 2:
        yield f"parallel.pp={parallel.pp}: interleaved_1f1b needs 2 or more stages; use pp_schedule=1f1b"
    if not interleaved and parallel.pp_virtual_stages > 1:
        yield (
            f"parallel.pp_virtual_stages={parallel.pp_virtual_stages}: must be 1 with parallel.pp_schedule="
            f"{parallel.pp_schedule}; more needs interleaved_1f1b"
        )


def _batch(config: Config) -> Iterator[str]:
    parallel, batch = config.parallel, config.train.global_batch
    unit = parallel.groups * parallel.micro_batches * parallel.dp_shard
    if batch % unit:
        near = sorted({max(batch // unit, 1) * unit, (batch // unit + 1) * unit})
        yield (
            f"train.global_batch={batch}: must be a multiple of parallel.groups={parallel.groups} x micro_batches="
            f"{parallel.micro_batches} x dp_shard={parallel.dp_shard} = {unit}, such as {' or '.join(map(str, near))}"
        )


def _redundancy(config: Config) -> Iterator[str]:
    chosen, groups = config.fault_tolerance, config.parallel.groups
    r = chosen.redundancy
    if chosen.backend == "ckpt" and r != 1:
        yield f"fault_tolerance.redundancy={r}: ckpt holds each type once (1); use fault_tolerance=rep or spare"
    if chosen.exact and config.parallel.pp > 1 and config.parallel.dp_shard > 1:
        yield (
            f"fault_tolerance.exact=true: parallel.pp={config.parallel.pp} with parallel.dp_shard="
            f"{config.parallel.dp_shard} sums several units in floating point; set pp=1 or dp_shard=1, or exact=false"
        )
    if r > groups:
        yield f"fault_tolerance.redundancy={r}: at most parallel.groups={groups}"
    if chosen.backend != "ckpt" and chosen.placement == "partition" and groups % r:
        yield (
            f"fault_tolerance.redundancy={r}: placement=partition needs a divisor of parallel.groups={groups} "
            f"({_divisors(groups)})"
        )


def _failures(config: Config) -> Iterator[str]:
    events, file = config.failures.events, config.failures.file
    if config.failures.kind != "trace" and events:
        yield f"failures.events: failures.kind={config.failures.kind} takes none; use failures=trace"
    if config.failures.kind != "trace" and file:
        yield f"failures.file={file}: failures.kind={config.failures.kind} takes none; use failures=trace"
    if config.failures.kind == "trace" and not events and not file:
        yield "failures.events: failures=trace needs a list, as [{step: 12, group: 1, phase: compute}], or a file"
    if config.failures.kind == "trace" and events and file:
        yield f"failures.file={file}: takes no failures.events beside it"
    if file:
        from fault_tolerance.failures import Trace  # numpy, which most command lines can do without

        try:
            Trace.from_file(config.parallel.groups, file)
        except ValueError as error:
            yield f"failures.file={file}: {error}"
    if config.launch.mode != "local" and (file or config.failures.kind == "weibull"):
        yield f"failures.kind={config.failures.kind}: launch.mode=local alone kills from outside; use failures.events"
    for index, event in enumerate(events):
        name = f"failures.events[{index}]"
        check_choice(f"{name}.phase", event.phase, PHASES)
        check_choice(f"{name}.signal", event.signal, SIGNALS)
        for field, limit, owner in (
            ("step", config.train.steps, "train.steps"),
            ("group", config.parallel.groups, "parallel.groups"),
            ("rank", config.parallel.ranks_per_group, "ranks of a group"),
        ):
            value = getattr(event, field)
            if not 0 <= value < limit:
                yield f"{name}.{field}={value}: from 0 to {limit - 1} ({owner}: {limit})"
        saves = config.checkpoint
        if event.phase == "checkpoint" and not (saves.every_steps or saves.every_seconds or saves.mtbf_seconds):
            yield f"{name}.phase=checkpoint: never comes with checkpoint.every_steps=0"


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if data.source in ("text", "tokens"):
        if not data.paths:
            yield f"data.paths: data.source={data.source} needs files, as data.paths=[corpus/*.txt]"
        for path in data.paths:
            if not glob.glob(os.path.expanduser(path), recursive=True):
                yield f"data.paths: {path} matches no file"
    elif data.paths:
        yield f"data.paths={data.paths}: data.source={data.source} reads none; use data=text or data=tokens"
    if data.source == "hf" and not data.name:
        yield "data.name: data.source=hf needs a data set's name or folder"
    vocabulary = config.model.vocab_size
    if data.source != "tokens" and data.tokenizer == "bpe" and not config.model.hf and data.bpe_vocab_size > vocabulary:
        yield f"data.bpe_vocab_size={data.bpe_vocab_size}: at most model.vocab_size={vocabulary}"


def _checkpoint(config: Config) -> Iterator[str]:
    resume = config.checkpoint.resume
    if resume not in ("auto", "never") and not os.path.isdir(resume):
        yield f"checkpoint.resume={resume}: no such folder (auto, never, or the folder of one checkpoint)"


def _device(config: Config) -> Iterator[str]:
    drivers = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
    if config.device != "cuda" or config.launch.mode == "controller":
        return
    if not any(os.path.exists(driver) for driver in drivers):
        yield "device=cuda: this machine shows no NVIDIA driver; use device=cpu or device=auto"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = len(visible.split(",")) if visible else len(glob.glob("/proc/driver/nvidia/gpus/*"))
    ranks = config.parallel.world if config.launch.mode == "local" else 1
    if 0 < gpus < ranks:
        yield f"device=cuda: {ranks} ranks need a GPU each, this machine has {gpus}; use fewer ranks or device=cpu"


def _run_folder(config: Config) -> Iterator[str]:
    folder = os.path.abspath(config.run_dir)
    if os.path.exists(folder) and not os.path.isdir(folder):
        yield f"run_dir={config.run_dir}: there is a file of that name; give a folder, new or of the run to go on with"
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        yield f"run_dir={config.run_dir}: {folder} is not a folder that can be written to"


def _launch(config: Config) -> Iterator[str]:
    launch = config.launch
    if launch.mode == "local":
        for field in ("controller", "group"):
            if getattr(launch, field) is not None:
                yield f"launch.{field}={getattr(launch, field)}: launch.mode=local takes none; use controller or worker"
        return
    host, _, port = (launch.controller or "").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        yield f"launch.controller={launch.controller}: launch.mode={launch.mode} needs host:port, as 10.0.0.1:29400"
    if launch.mode == "worker" and (launch.group is None or not 0 <= launch.group < config.parallel.groups):
        yield f"launch.group={launch.group}: launch.mode=worker needs 0 to {config.parallel.groups - 1}"


RULES: tuple[Callable[[Config], Iterator[str]], ...] = (
    _optimizer,
    _model,
    _schedule,
    _batch,
    _redundancy,
    _failures,
    _data,
    _checkpoint,
    _device,
    _launch,
    _run_folder,
)
"""Combinations of options; each rule yields its problems, the first of all is told."""
