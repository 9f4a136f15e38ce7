"""Tied embeddings over a pipeline: the first and the last stage hold the same weight and must see the same gradient.

While units run, each of the two accumulates into a scratch gradient; afterwards they exchange scratches and both add
first + last, in this order, so that their weights stay equal bit for bit. Exact sums are kept apart instead (`apart`)
and added up once they are reduced (`add_up`), when no rounding depends on it any more.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.model.linear import local


class TiedEmbedding:
    """Keeps the gradient of the weight that two pipeline ranks share."""

    def __init__(self, parameter: nn.Parameter, group: dist.ProcessGroup) -> None:
        self.parameter, self.group = parameter, group
        self.rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
        assert self.rank in (0, last)
        self.peer = last if self.rank == 0 else 0
        self.scratch: Tensor | None = None
        self.apart = False
        self._kept: Tensor | None = None

    def begin(self) -> None:
        """Turn accumulation to the scratch gradient."""
        if self.apart:
            return
        self._kept = self.parameter.grad
        self.scratch = torch.zeros_like(self.parameter) if self.scratch is None else self.scratch.zero_()
        self.parameter.grad = self.scratch

    def finish(self) -> None:
        """Exchange scratch gradients and add both to the gradient that `begin` set aside."""
        if self.scratch is None:
            return
        total = self.add_up(local(self.scratch))
        if self._kept is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        else:
            self.parameter.grad = self._kept
        local(self.parameter.grad).add_(total)
        self._kept = None

    def add_up(self, mine: Tensor) -> Tensor:
        """The first stage's tensor + the last's, of any shape, the same bits on both (a collective of the two)."""
        other = torch.empty_like(mine)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine, group=self.group, group_peer=self.peer),
                dist.P2POp(dist.irecv, other, group=self.group, group_peer=self.peer),
            ]
        )
        for work in works:
            work.wait()
        return mine + other if self.rank == 0 else other + mine
