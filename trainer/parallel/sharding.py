"""FSDP2: parameters, gradients and optimizer state sharded over the ranks of `dp_shard`.

Gradients are summed, not averaged, because the loss is a sum over tokens. Under a pipeline, layers stay gathered
between their forward and backward passes: gathering again for every micro-batch would cost more than it saves.
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from trainer.model.decoder import Decoder


def shard(chunk: Decoder, mesh: DeviceMesh, compute_dtype: torch.dtype, keep_gathered: bool) -> None:
    """Shard a chunk over `mesh` in place, one unit of communication per decoder layer."""
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in chunk.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not keep_gathered)
    fully_shard(chunk, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in chunk.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def release(chunk: Decoder) -> None:
    """Drop gathered parameters, which the next optimizer step would leave behind."""
    for module in chunk.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
