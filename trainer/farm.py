"""Whole runs as tasks of a fork server that has imported the trainer: for comparisons, sweeps and tests.

A run costs some ten seconds of imports; here they are paid once.
"""

from __future__ import annotations

from pathlib import Path

import trainer.worker  # noqa: F401  (what every run's own fork server inherits)
from fault_tolerance.runtime.forkclient import Task
from trainer import config as configuration
from trainer.launch import Launcher


def run(task: Task) -> int:
    """One run by its saved configuration (`task["config"]`); returns the exit status."""
    return Launcher(configuration.load(Path(task["config"])), inherit=True).run()
