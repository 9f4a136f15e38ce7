"""Gradients as flat buffers: local sums that are kept until the step has committed, and the reduced copy.

`param.grad` is a view of a flat buffer, so accumulating a unit's gradient and reducing need no gathering. An
all-reduce is not atomic (a death leaves in-place buffers half reduced), hence the second buffer; where the policy
restarts at any failure anyway, `keep_local=False` reduces in place and saves it. Replication keeps one local sum per
type of its stack (a slot), since a death decides only later which copies count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

ALIGNMENT = 16
"""Elements; every gradient begins at a multiple (64 bytes in fp32)."""
STATISTICS = 6
"""Sums that are reduced beside the gradients; the last place belongs to the buckets."""


class GradientBuckets:
    """Flat fp32 gradient buffers of this rank's parameters, cut into buckets in the order of the backward pass.

    Args:
        parameters: in the order of the forward pass.
        bucket_bytes: least size of a bucket.
        keep_local: reduce out of place.
        slots: how many local sums are kept apart.

    Attributes:
        statistics: float64 [STATISTICS] of the selected slot (sums, whatever the caller adds up);
            `reduced_statistics` that of all groups.
    """

    in_flight: int | None = None
    """Most buckets that may be on their way at once; None: all."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, bucket_bytes: int, keep_local: bool, slots: int = 1
    ) -> None:
        assert keep_local or slots == 1
        self.keep_local, self.slots = keep_local, slots
        self._parameters = list(reversed(parameters))
        self._lay_out(bucket_bytes)
        self._sums = [self._flat(torch.float32) for _ in range(slots)]
        self._sum_gradients = [self._views(flat) for flat in self._sums]
        self._make_statistics()
        self._reduced, self._reduced_gradients = self._sums[0], self._sum_gradients[0]
        if keep_local:
            self.renew_reduced()
        self._watch_nothing()

    # -- buffers ----------------------------------------------------------------------------------------------------

    def _lay_out(self, bucket_bytes: int) -> None:
        self._offsets: list[int] = []
        self._bounds: list[tuple[int, int]] = []
        self._bucket_of: list[int] = []
        size = start = 0
        for parameter in self._parameters:
            self._offsets.append(size)
            self._bucket_of.append(len(self._bounds))
            size += -(-local_tensor(parameter).numel() // ALIGNMENT) * ALIGNMENT
            if (size - start) * 4 >= bucket_bytes:
                self._bounds.append((start, size))
                start = size
        if size > start:
            self._bounds.append((start, size))
        self._size = size
        self._device = local_tensor(self._parameters[0]).device

    def _flat(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(self._size, dtype=dtype, device=self._device)

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        views = []
        for parameter, offset in zip(self._parameters, self._offsets, strict=True):
            local = local_tensor(parameter)
            view = flat[offset : offset + local.numel()].view(local.shape)
            if isinstance(parameter, DTensor):
                view = DTensor.from_local(
                    view,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            views.append(view)
        return views

    def _make_statistics(self) -> None:
        self._slot_statistics = [
            torch.zeros(STATISTICS, dtype=torch.float64, device=self._device) for _ in range(self.slots)
        ]
        self.statistics = self._slot_statistics[0]
        self.reduced_statistics = self.statistics

    def renew_reduced(self) -> None:
        """Fresh buffers to reduce into: a lost collective may still write to the old ones."""
        assert self.keep_local
        self._reduced = self._flat(torch.float32)
        self._reduced_gradients = self._views(self._reduced)
        self.reduced_statistics = torch.zeros_like(self.statistics)

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._bounds)

    def begin_reduce(self) -> None:
        """A reduction begins; nothing of an earlier one is on its way to these buffers."""

    def load_bucket(self, bucket: int, slots: Sequence[int]) -> torch.Tensor:
        """The tensor to reduce in place for `bucket`, filled with the sum of these slots' local sums."""
        start, end = self._bounds[bucket]
        target = self._reduced[start:end]
        if self.keep_local:
            sum_into(target, [self._sums[slot][start:end] for slot in slots])
        return target

    def store_bucket(self, bucket: int) -> None:
        """The reduction of `bucket` is done: its sums lie in `reduced` from here (they do already)."""

    def finish(self) -> None:
        """All buckets are stored and the statistics reduced."""

    def combine(self) -> None:
        """Every rank of this group holds its reduced sums: those that its ranks hold parts of are added up."""

    def load_statistics(self, slots: Sequence[int]) -> torch.Tensor:
        """`reduced_statistics`, filled with the sum of these slots' statistics."""
        if self.keep_local:
            sum_into(self.reduced_statistics, [self._slot_statistics[slot] for slot in slots])
        return self.reduced_statistics

    @property
    def reduced(self) -> torch.Tensor:
        """The whole flat reduced buffer (fp32)."""
        return self._reduced

    def reduced_gradients(self) -> list[torch.Tensor]:
        """Local views of the reduced gradients, in the order of the parameters given."""
        return [local_tensor(gradient) for gradient in reversed(self._reduced_gradients)]

    def begin_step(self) -> None:
        """Zeroes all local sums and selects slot 0."""
        for tensor in (*self._sums, *self._slot_statistics):
            tensor.zero_()
        self.select(0)

    def select(self, slot: int) -> None:
        """Gradients and statistics now add up in `slot`."""
        self.statistics = self._slot_statistics[slot]
        self._point_gradients_at(self._sum_gradients[slot])

    def expose_reduced(self) -> None:
        """Points every `param.grad` at the reduced gradient, for the optimizer."""
        self._point_gradients_at(self._reduced_gradients)

    def _point_gradients_at(self, gradients: list[torch.Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    # -- overlap with the backward pass -----------------------------------------------------------------------------

    def watch_backward(self) -> None:
        """Installs the hooks that `arm` uses; for models whose gradients autograd accumulates once per backward."""
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        return lambda _: self._is_final(index)

    def _is_final(self, index: int) -> None:
        """The backward pass has added the last to a parameter's gradient."""
        if self._on_bucket is None:
            return
        self._waiting[self._bucket_of[index]] -= 1
        while self._next_bucket < len(self._waiting) and self._waiting[self._next_bucket] == 0:
            self._next_bucket += 1
            self._on_bucket(self._next_bucket - 1)

    def _watch_nothing(self) -> None:
        self._waiting: list[int] = []
        self._on_bucket: Callable[[int], None] | None = None
        self._next_bucket = 0

    def arm(self, on_bucket: Callable[[int], None]) -> None:
        """During the next backward pass `on_bucket(i)` is called as soon as buckets 0..i are final, in order."""
        self._waiting = [0] * len(self._bounds)
        for bucket in self._bucket_of:
            self._waiting[bucket] += 1
        self._next_bucket, self._on_bucket = 0, on_bucket

    def disarm(self) -> None:
        """Ends the watch."""
        self._on_bucket = None


def sum_into(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> torch.Tensor:
    """Fills `target` with the sum of the sources (zero without any) and returns it."""
    if not sources:
        return target.zero_()
    target.copy_(sources[0])
    for source in sources[1:]:
        target.add_(source)
    return target


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
