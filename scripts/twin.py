"""Runs a configuration with its failures, then without, and says whether both ended with the same weights.

    python scripts/twin.py experiment=demo_spare

Options are those of `python -m trainer`; the undisturbed twin lies in run_dir/undisturbed. Exit status 0 means equal
weights.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from trainer.cli import entry_point
from trainer.config import Config, resolve
from trainer.launch import Launcher
from trainer.run_folder import RunFolder


def run(config: Config, title: str) -> tuple[int, dict[str, Any]]:
    """One run: its exit status and what its summary.json holds."""
    print(f"\n{title}\n", flush=True)
    status = Launcher(config).run()
    summary = json.loads(RunFolder(Path(config.run_dir)).summary.read_text(encoding="utf-8"))
    return status, summary


@entry_point("config")
def main(cfg: DictConfig) -> int:
    """Run a configuration with its failures and without, and compare the weights."""
    config = resolve(cfg)
    if config.failures.kind == "none" or config.launch.mode != "local":
        raise ValueError("failures=none or launch.mode: the twin needs failures to leave out, as in failures=trace")
    undisturbed = copy.deepcopy(config)
    undisturbed.failures.kind = "none"
    undisturbed.run_dir = str(Path(config.run_dir) / "undisturbed")
    status, first = run(config, "with failures")
    if status != 0:
        return status
    status, second = run(undisturbed, "undisturbed")
    if status != 0:
        return status
    equal = first["weights_sha256"] == second["weights_sha256"]
    print(
        f"\n{first['failures']} failures, {first['masked_failures']} of them masked, "
        f"{first['global_restarts']} global restarts: "
        f"the weights {'equal' if equal else 'DIFFER FROM'} the undisturbed run's\n"
        f"  with failures  {first['weights_sha256']}\n  undisturbed    {second['weights_sha256']}"
    )
    return 0 if equal else 1


if __name__ == "__main__":
    main()
