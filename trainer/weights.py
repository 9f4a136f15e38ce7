"""One hash of a model's weights that does not depend on how it is laid out over ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def tensor_sha256(tensor: Tensor) -> str:
    """Hex SHA-256 of a full tensor's bytes in row-major order."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()


def weights_sha256(named_tensors: Iterable[tuple[str, Tensor]], process_group: dist.ProcessGroup | None = None) -> str:
    """Hex SHA-256 over the sorted (name, type, shape, hash of the bytes) of the whole model.

    `named_tensors` gives full (unsharded) tensors under their names in the whole model; with a pipeline each rank gives
    those of its stage, and `process_group` (all ranks of the group) brings the stages' hashes together. All ranks get
    the answer. Tensors are taken one at a time, so a generator that gathers them keeps memory low.
    """
    digests = {
        name: (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor_sha256(tensor))
        for name, tensor in named_tensors
    }
    if process_group is not None and dist.get_world_size(process_group) > 1:
        gathered: list[dict] = [{} for _ in range(dist.get_world_size(process_group))]
        dist.all_gather_object(gathered, digests, group=process_group)
        for other in gathered:
            for name, digest in other.items():
                assert digests.setdefault(name, digest) == digest, f"ranks of one group hold different {name}"
    lines = [f"{name} {kind} {shape} {digest}\n" for name, (kind, shape, digest) in sorted(digests.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
