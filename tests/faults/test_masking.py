"""Deaths that SPARe and replication mask: the run goes on, and its bits do not tell that anything happened."""

from __future__ import annotations

from typing import Any

import pytest
from farm import strike

pytestmark = pytest.mark.processes

BACKENDS: dict[str, dict[str, Any]] = {
    "spare": {"backend": "spare", "redundancy": 2},
    "spare-shard": {"backend": "spare", "redundancy": 2, "granularity": "shard"},
    "rep-cyclic": {"backend": "rep", "redundancy": 2, "placement": "cyclic"},
    "rep-partition": {"backend": "rep", "redundancy": 2, "placement": "partition"},
}


def options(backend: str, **more: Any) -> dict[str, Any]:
    settings = {f"fault_tolerance__{key}": value for key, value in BACKENDS[backend].items()}
    return {"parallel__groups": 4, "fault_tolerance__exact": True, **settings, **more}


@pytest.mark.parametrize("phase", ["compute", "reduce", "commit"])
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_death_in_each_phase_is_masked(start: Any, same: Any, backend: str, phase: str) -> None:
    run = start(**options(backend, failures__events=[strike(3, 1, phase)])).finish()
    same(run, failures=1, masked_failures=1, global_restarts=0, lost_steps=0, steps=8)
