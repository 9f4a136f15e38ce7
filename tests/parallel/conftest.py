"""The fork server of the tests that run several ranks; started once, outside of any test."""

from __future__ import annotations

import pytest
from ranks import start_server


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Ranks start in milliseconds from here on."""
    start_server()
