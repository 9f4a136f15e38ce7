"""The rows of a comparison: a method with its redundancy, its run's configuration and its policy."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, fields
from pathlib import Path

from fault_tolerance.policies.base import Policy
from fault_tolerance.simulation.cases import METHODS, Method
from trainer.config import Config, FailuresConfig, FaultToleranceConfig
from trainer.policy import policy_of

LIVE_METHODS = tuple(name for name, method in METHODS.items() if not method.duplicates)
"""Methods that run live; the names are the simulator's."""


@dataclass(frozen=True)
class Row:
    """One method at one redundancy."""

    method: str
    redundancy: int

    @classmethod
    def parse(cls, text: str) -> Row:
        """`ckpt`, or a method and its redundancy as in `spare_micro_batch:3`.

        Raises:
            ValueError: the method is unknown, or the redundancy is no number above 0.
        """
        name, _, number = text.partition(":")
        if name not in LIVE_METHODS:
            raise ValueError(f"comparison.rows: {text}: the method is one of {', '.join(LIVE_METHODS)}")
        if name == "ckpt" and number in ("", "1"):
            return cls(name, 1)
        if name == "ckpt" or not number.isdigit() or int(number) < 1:
            example = "ckpt" if name == "ckpt" else f"{name}:2"
            raise ValueError(f"comparison.rows: {text}: expected a redundancy that fits, as in {example}")
        return cls(name, int(number))

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.method}-r{self.redundancy}"

    @property
    def kind(self) -> Method:
        return METHODS[self.method]

    @property
    def title(self) -> str:
        """For tables and pictures."""
        return self.kind.title if self.method == "ckpt" else f"{self.kind.title}, r = {self.redundancy}"

    def config(self, base: Config, folder: Path, trace: Path) -> Config:
        """The configuration of its live run; what `base` says of the method is replaced."""
        plain = Config(**{entry.name: getattr(base, entry.name) for entry in fields(Config)})
        return dataclasses.replace(
            plain,
            run_dir=str(folder),
            fault_tolerance=self._settings(base),
            failures=FailuresConfig(kind="trace", file=str(trace), unit="seconds"),
            logging=dataclasses.replace(
                base.logging, wandb_group=base.logging.wandb_group or folder.parent.parent.name
            ),
        )

    def policy(self, config: Config) -> Policy:
        """A fresh policy, the one that its live run has."""
        return policy_of(dataclasses.replace(config, fault_tolerance=self._settings(config)))

    def _settings(self, base: Config) -> FaultToleranceConfig:
        """The row's method in place of the one that `base` names."""
        method = self.kind
        return dataclasses.replace(
            base.fault_tolerance,
            backend=method.backend,
            redundancy=self.redundancy,
            granularity=method.granularity,
            placement=method.placement,
        )
