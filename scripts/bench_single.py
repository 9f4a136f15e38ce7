"""Speed of one process against a plain loop around transformers' LlamaForCausalLM.

Both train the same model on the same batches with fused AdamW, in interleaved pairs, so that a noisy machine hits
both alike; the ratio of each pair is taken and the median reported, of elapsed time and of processor time (which other
processes disturb less). Each is also given as a share of the machine's matrix-product peak, measured in the same run.

    python scripts/bench_single.py [--model small] [--batch 4] [--length 256] [--pairs 10] [--threads 1] [--compile]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from torch import Tensor

from trainer.config import ModelConfig, ParallelConfig
from trainer.model.huggingface import to_hf_config
from trainer.model.size import flops_per_token
from trainer.parallel.group_model import GroupModel
from trainer.parallel.mesh import GroupMesh

CONFIGS = Path(__file__).resolve().parents[1] / "conf" / "model"
Step = Callable[[Tensor], float]


def plain_step(config: ModelConfig, length: int, compiled: bool) -> Step:
    """The loop that one writes first: LlamaForCausalLM, its own loss, fused AdamW."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options = to_hf_config(config, length)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(options.pop("model_type"), **options))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if compiled else model

    def step(block: Tensor) -> float:
        loss = forward(input_ids=block[:, :-1], labels=block[:, :-1], use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def our_step(config: ModelConfig, length: int, compiled: bool) -> Step:
    """GroupModel as the trainer runs it: sums of token losses, gradients in one flat float32 buffer, fused AdamW."""
    parallel = ParallelConfig(groups=1, micro_batches=1, compile=compiled)
    mesh = GroupMesh(parallel, torch.device("cpu"))
    model = GroupModel(config, parallel, mesh=mesh, sequence_length=length, compute_dtype=torch.float32, seed=0)
    parameters = [parameter for _, parameter in model.named_parameters()]
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=True)

    def step(block: Tensor) -> float:
        flat.zero_()
        loss = model.run(block.unsqueeze(0))
        tokens = block.shape[0] * (block.shape[1] - 1)
        flat.div_(tokens)
        optimizer.step()
        return float(loss) / tokens

    return step


def matmul_peak(seconds: float = 1.0, size: int = 1024) -> float:
    """Best float32 matrix-product speed seen, in FLOP per processor second (of one thread)."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out, best, end = torch.empty(size, size), 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time()
        torch.mm(a, b, out=out)
        best = max(best, 2 * size**3 / (time.process_time() - start))
    return best


def measure(steps: dict[str, Step], blocks: Tensor, pairs: int) -> dict[str, list[tuple[float, float]]]:
    """(Elapsed, processor) seconds of each step, pair by pair, in alternating order after two steps of warm-up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for index in range(-2, pairs):
        order = list(steps) if index % 2 else list(reversed(steps))
        for name in order:
            start, busy = time.perf_counter(), time.process_time()
            steps[name](blocks[index % len(blocks)])
            if index >= 0:
                seconds[name].append((time.perf_counter() - start, time.process_time() - busy))
    return seconds


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small", help="name of a config in conf/model")
    parser.add_argument("--batch", type=int, default=4, help="sequences per step")
    parser.add_argument("--length", type=int, default=256, help="tokens per sequence")
    parser.add_argument("--pairs", type=int, default=10, help="measured steps of each")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads")
    parser.add_argument("--compile", action="store_true", help="torch.compile both")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = ModelConfig(**yaml.safe_load((CONFIGS / f"{options.model}.yaml").read_text()))
    shape = (4, options.batch, options.length + 1)
    blocks = torch.randint(0, config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    steps = {
        "transformers": plain_step(config, options.length, options.compile),
        "trainer": our_step(config, options.length, options.compile),
    }
    peak = matmul_peak()
    seconds = measure(steps, blocks, options.pairs)
    peak = max(peak, matmul_peak())
    tokens = options.batch * options.length
    flops = tokens * flops_per_token(config, options.length)
    kind = "compiled" if options.compile else "eager"
    print(f"{options.model}, {options.batch} x {options.length} tokens, {kind}; peak {peak / 1e9:.0f} GFLOP/s")
    for name, values in seconds.items():
        elapsed, busy = (statistics.median(part) for part in zip(*values, strict=True))
        share = flops / busy / peak
        print(f"{name:>12}: {tokens / elapsed:7.0f} tokens/s, {share:.3f} of the peak per processor second and thread")
    for index, kind in enumerate(("elapsed", "processor")):
        pairs = zip(seconds["transformers"], seconds["trainer"], strict=True)
        ratios = [plain[index] / ours[index] for plain, ours in pairs]
        spread = f"pairs from {min(ratios):.3f} to {max(ratios):.3f}"
        best = min(values[index] for values in seconds["transformers"]) / min(
            values[index] for values in seconds["trainer"]
        )
        print(
            f"trainer / transformers, {kind} time: {statistics.median(ratios):.3f} ({spread}; best of each {best:.3f})"
        )


if __name__ == "__main__":
    main()
