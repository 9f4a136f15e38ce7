"""Our engine against SimGrid with the same policies, failures and draws; skipped where SimGrid is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fault_tolerance.simulation.simgrid_engine import EXTENSION_SUFFIXES, SYSTEM_PACKAGES

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_simgrid.py"
INSTALLED = any((SYSTEM_PACKAGES / f"simgrid{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)


@pytest.mark.skipif(not INSTALLED, reason="needs Debian's python3-simgrid for this Python version")
@pytest.mark.timeout(90)
def test_time_to_train_within_one_percent_of_simgrid() -> None:
    command = [sys.executable, str(SCRIPT), "--groups", "16", "--steps", "40", "--seeds", "2"]
    command += ["--methods", "rep", "spare", "spare_micro_batch"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("spare") == 4


def test_check_is_not_vacuous() -> None:
    """A scenario that differs by one duration must show."""
    sys.path.insert(0, str(SCRIPT.parent))
    from check_simgrid import TOLERANCE, case_of

    from fault_tolerance.simulation.engine import simulate

    case = case_of("spare", 6, 16, 40, 0)
    usual = case.run().wall_seconds
    values = json.loads(json.dumps(vars(case.scenario()) | {"step_failures": []}))
    values |= {"step_failures": (), "reduce_seconds": 3.0}
    other = simulate(type(case.scenario())(**values), case.policy(), case.failures(), case.seed).wall_seconds
    assert abs(other / usual - 1) > TOLERANCE
