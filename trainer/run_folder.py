"""The run folder's layout, and what makes two configurations those of one run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from trainer import config as configuration
from trainer.config import Config


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def injected(self) -> Path:
        """Marks of the injected failures that have struck."""
        return self.path / "injected"

    @property
    def processes(self) -> Path:
        """Who runs as which process now (JSON), for people and tools that send signals."""
        return self.path / "processes.json"

    def log(self, group: int, rank: int) -> Path:
        return self.logs / f"group-{group}-rank-{rank}.log"


def fingerprint(config: Config) -> str:
    """Hash of all that must be equal in the processes of one run; where and how they start may differ."""
    values = configuration.to_dict(config)
    for own in ("run_dir", "launch", "logging"):
        values.pop(own)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
