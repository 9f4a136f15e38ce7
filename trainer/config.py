"""The trainer's configuration: structured configs for Hydra, resolved and checked once.

Each group of `conf/` has its dataclass here; `conf/*.yaml` only selects values. Nothing below the boundary
sees a DictConfig: `resolve` returns a checked `Config`.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf


@dataclass
class ModelConfig:
    """Decoder of the Llama/Qwen3 kind."""

    name: str = "tiny"
    """Name for logs."""
    hf: str | None = None
    """Folder or hub name of a transformers config; its values replace the ones below."""
    vocab_size: int = 4096
    """Rows of the embedding; at least the tokenizer's size."""
    hidden_size: int = 128
    """Width of the residual stream."""
    intermediate_size: int = 352
    """Width of the SwiGLU."""
    layers: int = 4
    """Decoder layers."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key and value heads (grouped-query attention)."""
    head_dim: int | None = None
    """Width of a head; hidden_size / heads when empty."""
    rope_theta: float = 10000.0
    """Base of the rotary position embedding."""
    rope_scaling: dict[str, Any] | None = None
    """Rotary scaling as transformers writes it (rope_type llama3 or default)."""
    norm_eps: float = 1e-5
    """Epsilon of RMSNorm."""
    qk_norm: bool = False
    """RMSNorm on queries and keys per head (Qwen3)."""
    tied_embeddings: bool = False
    """Output projection shares the embedding's weight."""
    init_std: float = 0.02
    """Standard deviation of the initial weights."""


@dataclass
class ParallelConfig:
    """Degrees of parallelism. Ranks = groups x tp x pp x dp_shard."""

    groups: int = 2
    """Data-parallel groups (N); each holds the whole model and is the unit of failure."""
    tp: int = 1
    """Tensor-parallel ranks in a group."""
    pp: int = 1
    """Pipeline stages in a group."""
    dp_shard: int = 1
    """FSDP2 shards in a group."""
    micro_batches: int = 2
    """Micro-batches per shard type (m); a unit is (type, micro-batch)."""
    pp_schedule: str = "1f1b"
    """Pipeline schedule: gpipe, 1f1b or interleaved_1f1b."""
    pp_virtual_stages: int = 1
    """Model chunks per pipeline rank (interleaved_1f1b needs 2 or more)."""
    activation_checkpointing: bool = False
    """Recompute each decoder layer in the backward pass."""
    compile: bool = False
    """torch.compile each decoder layer."""
    bucket_mib: int = 25
    """MiB of gradients per all-reduce between groups."""

    @property
    def ranks_per_group(self) -> int:
        """Ranks of one group (M)."""
        return self.tp * self.pp * self.dp_shard

    @property
    def world(self) -> int:
        """Ranks of all groups."""
        return self.groups * self.ranks_per_group


@dataclass
class DataConfig:
    """Where tokens come from: index-addressed blocks of train.sequence_length + 1 tokens."""

    source: str = "python_stdlib"
    """python_stdlib, text, hf or tokens."""
    paths: list[str] = field(default_factory=list)
    """Files or globs (text), or token files (tokens: .bin of uint16/uint32, or Megatron's .bin with its .idx)."""
    name: str | None = None
    """Data set name or folder (hf)."""
    split: str = "train"
    """Split (hf)."""
    column: str = "text"
    """Text column (hf)."""
    subset: str | None = None
    """Configuration of a data set that has several (hf)."""
    revision: str | None = None
    """Commit or tag of a data set of the hub (hf); without one the cached copy is never checked for changes."""
    tokenizer: str = "bpe"
    """bytes, bpe (trained once on the corpus and cached), or a folder or name of a transformers tokenizer."""
    bpe_vocab_size: int = 4096
    """Vocabulary of the trained BPE."""
    token_dtype: str = "uint16"
    """Type of raw token files (tokens)."""
    cache_dir: str | None = None
    """Where tokenised corpora are kept; ~/.cache/spare-trainer when empty."""
    validation_fraction: float = 0.01
    """Share of the blocks held out for validation."""
    shuffle: bool = True
    """Blocks in a seeded random order, new in each epoch."""


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = 3e-3
    """Peak learning rate."""
    min_lr_ratio: float = 0.1
    """Last learning rate as a share of the peak."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    """AdamW's averages."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.1
    """Decay of matrices; norms and biases are not decayed."""
    grad_clip: float = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    schedule: str = "cosine"
    """cosine, wsd (warm-up, stable, decay) or constant."""
    warmup_steps: int = 10
    """Steps of linear warm-up."""
    decay_steps: int | None = None
    """Steps of the decay at the end (wsd); a fifth of train.steps when empty."""


@dataclass
class TrainConfig:
    """The run itself."""

    steps: int = 100
    """Optimizer steps of the run."""
    global_batch: int = 16
    """Sequences per step over all groups; a multiple of groups x micro_batches x dp_shard."""
    sequence_length: int = 128
    """Tokens per sequence."""
    dtype: str = "auto"
    """Compute type: auto (bfloat16 on CUDA, float32 on CPU), float32 or bfloat16. Master weights are float32."""
    validation_every: int = 0
    """Steps between validation losses; 0: at the end only."""
    validation_batches: int = 4
    """Global batches per validation loss."""
    log_every: int = 1
    """Steps between lines of metrics."""
    max_bad_steps: int = 3
    """Consecutive steps with a loss or gradient that is not finite before the run stops; such a step is skipped."""
    deterministic: bool = True
    """Deterministic kernels, so that a run repeats bit for bit."""


@dataclass
class CheckpointConfig:
    """When and where checkpoints are written."""

    every_steps: int = 50
    """Steps between checkpoints; 0: steps do not count."""
    every_seconds: float = 0.0
    """Seconds between checkpoints; 0: seconds do not count."""
    mtbf_seconds: float = 0.0
    """Mean seconds between failures of the whole system; above 0: the period is planned from it, the redundancy and the
    measured cost of a save (the paper's optimum), in place of every_seconds."""
    restart_seconds: float = 60.0
    """Seconds that a global restart takes, for the planned period."""
    keep: int = 2
    """Newest checkpoints that are kept."""
    asynchronous: bool = True
    """Write in the background."""
    smallest_part_mb: float = 0.0
    """Live groups share a save in parts of at least this many megabytes of weights and optimizer state, so that a small
    model is written by few of them (after a writer's death the next group's first save allocates its memory); 0: each
    writes a part."""
    dir: str | None = None
    """Folder of checkpoints; run_dir/checkpoints when empty."""
    resume: str = "auto"
    """auto (newest verified in the folder), never, or the path of one checkpoint."""


@dataclass
class FaultToleranceConfig:
    """The backend of the data-parallel layer."""

    backend: str = "ckpt"
    """ckpt, rep or spare."""
    redundancy: int = 1
    """Types per group (r): rep and spare."""
    granularity: str = "micro_batch"
    """spare: shard (as published) or micro_batch."""
    placement: str = "cyclic"
    """Where the copies lie: cyclic (Golomb ruler) or partition (teams of r)."""
    exact: bool = False
    """Fixed-point gradient sums: the same bits under every failure schedule."""
    solver: str = "incremental"
    """RECTLR solver: incremental, or networkx (the readable reference)."""
    timeout_seconds: float = 30.0
    """The one timeout; each wait's deadline derives from it."""
    max_restarts_without_progress: int = 3
    """Global restarts that may follow each other without a new committed step."""


@dataclass
class FailureEvent:
    """One injected failure of `failures.events`."""

    step: int = 0
    """Step (from 0) in which it strikes."""
    group: int = 0
    """Group it strikes."""
    phase: str = "compute"
    """compute, reduce, commit, recovery or checkpoint."""
    signal: str = "SIGKILL"
    """SIGKILL, SIGSTOP, SIGTERM, exit or exception."""
    rank: int = 0
    """Rank inside the group."""


@dataclass
class FailuresConfig:
    """Failure injection."""

    kind: str = "none"
    """none, trace or weibull."""
    events: list[FailureEvent] = field(default_factory=list)
    """trace: the failures; each strikes once, also over restarts."""
    file: str | None = None
    """trace: a file of recorded deaths of whole groups instead (JSON lines or CSV with time and groups; a run's
    events.jsonl is one). Times count from the start of training; a group that is dead already is left out."""
    mtbf_seconds: float = 60.0
    """weibull: mean seconds between failures of the whole system."""
    shape: float = 0.78
    """weibull: shape."""
    unit: str = "seconds"
    """What mtbf_seconds and the times of a file count: seconds of wall-clock or committed steps."""


@dataclass
class EmulateConfig:
    """Emulated accelerators: real computations padded to fixed times, so that groups that share this machine's cores
    behave in time like machines of their own. Every output of such a run says so."""

    unit_seconds: float = 0.0
    """Seconds of one unit, forward and backward; 0: as long as it takes."""
    reduce_seconds: float = 0.0
    """Seconds of the gradient all-reduce between groups; 0: as long as it takes."""
    restart_seconds: float = 0.0
    """Seconds of a global restart, until training resumes; 0: as long as it takes."""

    @property
    def is_on(self) -> bool:
        """Whether anything is padded."""
        return self.unit_seconds > 0 or self.reduce_seconds > 0 or self.restart_seconds > 0


@dataclass
class LoggingConfig:
    """What is shown and where it is kept."""

    progress: bool = True
    """Progress bar on a terminal, plain lines elsewhere."""
    wandb: str = "offline"
    """disabled, offline or online."""
    wandb_project: str = "spare-trainer"
    """Weights & Biases project."""
    wandb_group: str | None = None
    """Weights & Biases group (a comparison)."""
    wandb_tags: list[str] = field(default_factory=list)
    """Weights & Biases tags."""


@dataclass
class LaunchConfig:
    """How processes are started."""

    mode: str = "local"
    """local (controller and all groups here), controller (the controller alone) or worker (under torchrun)."""
    controller: str | None = None
    """host:port of the controller (modes controller and worker)."""
    group: int | None = None
    """Index of this torchrun's group (mode worker)."""
    address: str = "127.0.0.1"
    """Address that the controller listens on."""
    threads_per_worker: int = 0
    """Intra-op threads of a worker; 0: cores / ranks on this machine, at least 1."""


@dataclass
class Config:
    """All of a run."""

    run_dir: str = "???"
    """Folder of the run."""
    seed: int = 0
    """Seed of weights, data order and everything random."""
    device: str = "auto"
    """auto, cpu or cuda."""
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    fault_tolerance: FaultToleranceConfig = field(default_factory=FaultToleranceConfig)
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    emulate: EmulateConfig = field(default_factory=EmulateConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)


def register() -> None:
    """Tell Hydra the schema (`schema` in a defaults list) and the resolver `new_folder`. May be called again."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("new_folder", _new_folder, replace=True)


def resolve(cfg: DictConfig) -> Config:
    """The composed config as plain, checked dataclasses.

    Raises:
        ValueError: an option is unknown, missing or does not fit; one line that names it and what would fit.
    """
    from trainer.validation import validate

    _reject_unknown(cfg, Config)
    if cfg.launch.mode != "local" and OmegaConf.is_interpolation(cfg, "run_dir"):
        raise ValueError(f"run_dir: launch.mode={cfg.launch.mode} needs run_dir=FOLDER, the same for all processes")
    config = OmegaConf.to_object(cfg)
    assert isinstance(config, Config)
    validate(config)
    return config


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested plain dicts."""
    return dataclasses.asdict(config)


def save(config: Config, path: Path) -> None:
    """Write a resolved config as YAML."""
    path.write_text(OmegaConf.to_yaml(OmegaConf.structured(config)), encoding="utf-8")


def load(path: Path) -> Config:
    """Read what `save` wrote.

    Raises:
        ValueError: the file does not fit this version's options.
    """
    merged = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path))
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    return config


@functools.cache
def _new_folder(path: str) -> str:
    """`path`, or the first of path-2, path-3, ... that does not exist; one answer per process."""
    candidate, number = path, 1
    while Path(candidate).exists():
        number += 1
        candidate = f"{path}-{number}"
    return candidate


def _reject_unknown(cfg: DictConfig, schema: type, prefix: str = "") -> None:
    """Refuse options that `+` or `++` added beside the schema's.

    Raises:
        ValueError: naming the first.
    """
    from trainer.cli_errors import unknown

    known = [entry.name for entry in dataclasses.fields(schema)]
    for key in map(str, cfg):
        if key not in known:
            raise ValueError(unknown(f"{prefix}{key}", [prefix + name for name in known]))
        node = cfg._get_node(key)
        kind = OmegaConf.get_type(node) if isinstance(node, DictConfig) else None
        if isinstance(node, DictConfig) and kind is not None and dataclasses.is_dataclass(kind):
            _reject_unknown(node, kind, f"{prefix}{key}.")
