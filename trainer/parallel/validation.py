"""Checks of model and parallel degrees that need no torch, so that a mistake is named before any process starts."""

from __future__ import annotations

from trainer.config import ModelConfig, ParallelConfig

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b")


def _divisors(*values: int) -> str:
    common = [str(d) for d in range(1, min(values) + 1) if all(value % d == 0 for value in values)]
    return ", ".join(common)


def check_model(model: ModelConfig) -> None:
    """Raise ValueError where the model's sizes contradict each other."""
    for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads"):
        if getattr(model, name) < 1:
            raise ValueError(f"model.{name}={getattr(model, name)} must be at least 1")
    if model.heads % model.kv_heads:
        raise ValueError(
            f"model.kv_heads={model.kv_heads} must divide model.heads={model.heads}: one of {_divisors(model.heads)}"
        )
    if model.head_dim is None and model.hidden_size % model.heads:
        raise ValueError(
            f"model.heads={model.heads} must divide model.hidden_size={model.hidden_size} unless model.head_dim is set"
        )
    head_dim = model.head_dim if model.head_dim is not None else model.hidden_size // model.heads
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"model.head_dim={head_dim} must be even (rotary embedding pairs elements)")


def check_parallel(model: ModelConfig, parallel: ParallelConfig, micro_batch_size: int | None = None) -> None:
    """Raise ValueError where parallel.{tp,pp,dp_shard} cannot split this model, or a unit's sequences.

    `micro_batch_size` is sequences per unit: train.global_batch / (parallel.groups x parallel.micro_batches).
    """
    check_model(model)
    for name in ("tp", "pp", "dp_shard", "pp_virtual_stages"):
        if getattr(parallel, name) < 1:
            raise ValueError(f"parallel.{name}={getattr(parallel, name)} must be at least 1")
    for name in ("heads", "kv_heads", "intermediate_size", "vocab_size"):
        size = getattr(model, name)
        if size % parallel.tp:
            raise ValueError(
                f"parallel.tp={parallel.tp} must divide model.{name}={size}; fitting values: "
                f"{_divisors(model.kv_heads, model.heads, model.intermediate_size, model.vocab_size)}"
            )
    _check_pipeline(model, parallel)
    if micro_batch_size is not None and micro_batch_size % parallel.dp_shard:
        raise ValueError(
            f"parallel.dp_shard={parallel.dp_shard} must divide the {micro_batch_size} sequences of a micro-batch "
            f"(train.global_batch / parallel.groups / parallel.micro_batches): one of {_divisors(micro_batch_size)}"
        )


def _check_pipeline(model: ModelConfig, parallel: ParallelConfig) -> None:
    if parallel.pp_schedule not in SCHEDULES:
        raise ValueError(f"parallel.pp_schedule={parallel.pp_schedule} is unknown; one of {', '.join(SCHEDULES)}")
    if parallel.pp == 1:
        return
    interleaved = parallel.pp_schedule == "interleaved_1f1b"
    if interleaved and parallel.pp_virtual_stages < 2:
        raise ValueError("parallel.pp_schedule=interleaved_1f1b needs parallel.pp_virtual_stages of 2 or more")
    if not interleaved and parallel.pp_virtual_stages > 1:
        raise ValueError(
            f"parallel.pp_virtual_stages={parallel.pp_virtual_stages} needs parallel.pp_schedule=interleaved_1f1b"
        )
    stages = parallel.pp * parallel.pp_virtual_stages
    if stages > model.layers:
        raise ValueError(
            f"parallel.pp={parallel.pp} x parallel.pp_virtual_stages={parallel.pp_virtual_stages} needs at least "
            f"{stages} layers, but model.layers={model.layers}"
        )
