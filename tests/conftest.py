"""Shared by all tests: one thread each, repeatable hypothesis, and no process left behind."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

MARK = "SPARE_TRAINER_TEST"
GRACE_SECONDS = 5.0


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests marked `processes`: whatever they started, orphans too, is gone soon after they end."""
    if request.node.get_closest_marker("processes") is None:
        yield
        return
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    end = time.monotonic() + GRACE_SECONDS
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    names = [f"{process.pid} {' '.join(process.cmdline())[:120]}" for process in left if process.is_running()]
    for process in left:
        process.kill()
    assert not names, f"processes left behind: {names}"


def _marked(mark: str) -> list[psutil.Process]:
    """Processes other than this one that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
