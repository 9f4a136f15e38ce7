"""The training loop of one rank: plan, compute, reduce, commit, step.

There is one loop. What happens when groups die is the backend's affair: `reduce` may hand back a patch to compute,
`commit` may say that the step must be reduced again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fault_tolerance.backends.base import Backend, Batch, Vote, Work
from fault_tolerance.runtime.injection import Injector
from fault_tolerance.runtime.membership import Membership
from trainer.checkpoint.schedule import CheckpointSchedule
from trainer.checkpoint.state import training_state
from trainer.checkpoint.writer import CheckpointWriter
from trainer.config import Config
from trainer.data.dataset import BlockDataset
from trainer.emulate import Pacer
from trainer.memory import memory_bytes
from trainer.optim import apply_learning_rate, clip_coefficient, learning_rate
from trainer.parallel.group_model import GroupModel

LOSS, TOKENS, VALIDATION_LOSS, VALIDATION_TOKENS, CHECKPOINT_WANTED = range(5)
"""Places in the statistics that are reduced beside the gradients; losses are sums over tokens."""


class Diverged(RuntimeError):
    """Too many steps in a row whose loss or gradient was not finite."""


class TrainingLoop:
    """Trains one rank's part of the model from `first_step` on.

    Args:
        vote: element-wise minimum over the ranks of this group (a collective).
        extra: JSON kept in every checkpoint beside the step (configuration, versions).
    """

    def __init__(
        self,
        config: Config,
        *,
        model: GroupModel,
        optimizer: torch.optim.Optimizer,
        data: BlockDataset,
        backend: Backend,
        checkpoints: CheckpointWriter,
        membership: Membership,
        injector: Injector,
        pacer: Pacer,
        vote: Vote,
        first_step: int,
        extra: dict[str, Any],
    ) -> None:
        self.config, self.model, self.optimizer, self.data = config, model, optimizer, data
        self.backend, self.checkpoints, self.membership = backend, checkpoints, membership
        self.injector, self.pacer, self.first_step, self.extra = injector, pacer, first_step, extra
        self.vote = vote
        self.schedule = CheckpointSchedule(config)
        self.seconds: dict[str, float] = {}
        self.longest_compute_seconds = 0.0
        self.bad_steps = 0
        self.final_loss: float | None = None
        self.validation_loss: float | None = None

    def run(self) -> None:
        """Trains to the last step, validates, and writes the last checkpoint."""
        for step in range(self.first_step, self.config.train.steps):
            self.train_step(step)
        self.final_validation()
        if self.schedule.is_on and self.first_step < self.config.train.steps:
            self.save_checkpoint(self.config.train.steps, last=True)

    # -- one step ---------------------------------------------------------------------------------------------------

    def train_step(self, step: int) -> None:
        """One optimizer step, or none of it on any rank."""
        began = time.perf_counter()
        self.seconds, self.longest_compute_seconds = {}, 0.0
        generation, work = self.backend.generation, self.backend.plan(step)
        committed = False
        while not committed:
            for batch in work or ():
                self.compute(step, batch)
            with self.timed("reduce"):
                work = self.pacer.reduce(self.backend)
            if work is None:
                norm = self.gradient_norm()
                with self.timed("commit"):
                    committed = self.backend.commit(norm)
        if self.backend.generation != generation:
            self.schedule.group_lost(self.backend.live_groups)
        self.membership.progress("optimizer")
        with self.timed("optimizer"):
            rate, skipped = self.optimizer_step(step, norm)
        if self.schedule.is_due(step + 1, self.checkpoint_is_wanted()):
            self.save_checkpoint(step + 1)
        self.report(step, began, norm, rate, skipped)

    def compute(self, step: int, batch: Batch, train: bool = True) -> None:
        """Adds the gradients and statistics of a batch of units to this group's local sums."""
        self.backend.enter(batch)
        self.membership.progress("compute")
        began = time.perf_counter()
        with self.timed("data"):
            blocks = self.blocks(lambda kind, micro_batch: self.data.unit(step, kind, micro_batch), batch)
        self.injector.at("compute", step)
        statistics = self.backend.buckets.statistics
        if train:
            with self.timed("compute"), self.pacer.units(batch):
                statistics[LOSS] += self.model.run(blocks, on_last_backward=self.backend.overlap)
                statistics[TOKENS] += blocks[..., 1:].numel()
            if self.membership.rank == 0:
                writes = self.membership.group in self.schedule.writers(self.backend.live_groups)
                statistics[CHECKPOINT_WANTED] += self.schedule.wants_one(self.checkpoints.exists, writes)
        self.longest_compute_seconds = max(self.longest_compute_seconds, time.perf_counter() - began)
        if self.validation_is_due(step):
            with self.timed("validation"):
                self.validate(batch)

    def blocks(self, unit: Callable[[int, int], Any], batch: Batch) -> torch.Tensor:
        """Token blocks [units, B, T+1] of a batch of units, on the device."""
        arrays = [torch.from_numpy(unit(kind, micro_batch)) for kind, micro_batch in batch]
        return torch.stack(arrays).to(self.model.mesh.device, non_blocking=True)

    def gradient_norm(self) -> float:
        """2-norm of the gradient of the mean token loss over the whole model (a collective inside the group)."""
        tokens = self.backend.buckets.reduced_statistics[TOKENS].item()
        return self.model.gradient_norm(self.backend.buckets.reduced_gradients()).item() / max(tokens, 1.0)

    def optimizer_step(self, step: int, norm: float) -> tuple[float, bool]:
        """Clips and steps; returns the learning rate, and whether the step was skipped as not finite.

        Raises:
            Diverged: `train.max_bad_steps` steps in a row were skipped.
        """
        optim = self.config.optim
        rate = learning_rate(step, optim, self.config.train.steps)
        total = self.backend.buckets.reduced_statistics
        if not (math.isfinite(norm) and math.isfinite(total[LOSS].item())):
            self.bad_steps += 1
            if self.bad_steps >= self.config.train.max_bad_steps:
                raise Diverged(
                    f"loss or gradient not finite in {self.bad_steps} steps in a row, the last being {step} "
                    f"(train.max_bad_steps={self.config.train.max_bad_steps}): lower optim.lr or look at the data"
                )
            return rate, True
        self.bad_steps = 0
        clip = clip_coefficient(norm, optim.grad_clip)
        self.backend.buckets.reduced.mul_(clip / total[TOKENS].item())
        apply_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        return rate, False

    # -- validation -------------------------------------------------------------------------------------------------

    def validation_is_due(self, step: int) -> bool:
        """Validation rides on a step: its sums are reduced and committed with the gradients."""
        train = self.config.train
        if self.config.data.validation_fraction == 0 or train.validation_batches == 0:
            return False
        return step == train.steps or bool(train.validation_every and step and step % train.validation_every == 0)

    def validate(self, batch: Batch) -> None:
        """Adds the validation loss of these units' share of the held-out data, under the weights before this step."""
        statistics = self.backend.buckets.statistics
        for number in range(self.config.train.validation_batches):
            self.membership.progress("compute")
            blocks = self.blocks(lambda kind, micro: self.data.validation_unit(number, kind, micro), batch)  # noqa: B023
            statistics[VALIDATION_LOSS] += self.model.evaluate(blocks)
            statistics[VALIDATION_TOKENS] += blocks[..., 1:].numel()

    def final_validation(self) -> None:
        """A step without training: the last weights on the held-out data, committed like any other."""
        step = self.config.train.steps
        if not self.validation_is_due(step):
            return
        work: Work | None = self.backend.plan(step)
        committed = False
        while not committed:
            for batch in work or ():
                self.compute(step, batch, train=False)
            work = self.backend.reduce()
            committed = work is None and self.backend.commit(0.0)
        self.note_validation()

    def note_validation(self) -> None:
        total = self.backend.buckets.reduced_statistics
        if total[VALIDATION_TOKENS] > 0:
            self.validation_loss = (total[VALIDATION_LOSS] / total[VALIDATION_TOKENS]).item()

    # -- beside the step --------------------------------------------------------------------------------------------

    def save_checkpoint(self, step: int, last: bool = False) -> None:
        """Saves the state after `step` steps; live groups share the work. Who writes the last one waits for it."""
        self.membership.progress("checkpoint")
        with self.timed("checkpoint"):
            began, group = time.perf_counter(), self.membership.group
            writers = self.schedule.writers(self.backend.live_groups)
            state = training_state(self.model.named_parameters(), self.optimizer)
            if group in writers:
                part, extra = writers.index(group), {"step": step, **self.extra}
                self.checkpoints.save(step, self.backend.generation, part, len(writers), state, extra)
            self.schedule.saved(step, time.perf_counter() - began, writers)
            self.injector.at("checkpoint", step - 1)
            if last:
                self.await_checkpoint(step)

    def checkpoint_is_wanted(self) -> bool:
        """Whether a rank 0 of any group asked for a checkpoint in this step; all ranks get the same answer."""
        asked = self.membership.rank == 0 and self.backend.buckets.reduced_statistics[CHECKPOINT_WANTED].item() > 0
        return self.vote([-int(asked)])[0] < 0

    def await_checkpoint(self, step: int) -> None:
        """Waits for the last save, as long as a worker may take to start."""
        deadline = time.monotonic() + self.membership.deadlines.startup
        while not self.checkpoints.wait(self.membership.deadlines.heartbeat_interval):
            self.membership.progress("checkpoint")
            if time.monotonic() > deadline:
                reason = f"not written within {self.membership.deadlines.startup:.0f} s"
                self.membership.event("checkpoint", step=step, status="failed", reason=reason)
                return

    def report(self, step: int, began: float, norm: float, rate: float, skipped: bool) -> None:
        """Tells the controller that the step counts. Every group does, so no death can lose the record."""
        self.checkpoints.poll()
        total = self.backend.buckets.reduced_statistics
        self.final_loss = (total[LOSS] / total[TOKENS]).item()
        self.note_validation()
        if self.membership.rank != 0:
            return
        record = {
            "step": step,
            "loss": self.final_loss,
            "lr": rate,
            "grad_norm": norm,
            "tokens": int(total[TOKENS].item()),
            "stacks": self.backend.stacks,
            "seconds": {"total": time.perf_counter() - began, **self.seconds},
            "longest_compute_seconds": self.longest_compute_seconds,
            "live_groups": len(self.backend.live_groups),
            "generation": self.backend.generation,
            "memory_bytes": memory_bytes(self.model.mesh.device),
            "skipped": skipped,
            **self.pacer.record(),
        }
        if total[VALIDATION_TOKENS] > 0:
            record["validation_loss"] = self.validation_loss
        self.membership.send({"type": "committed", "record": record})

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the seconds of the block to a part of the step."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began
