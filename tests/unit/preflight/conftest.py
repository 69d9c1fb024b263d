"""Processes that hold one thing each, by `holding.py`."""

from pathlib import Path

import pytest
from held_things import Hold, Holders


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    """Starts a process that holds a thing; skips the test where the kernel does not give it."""
    with Holders(tmp_path) as holders:
        yield holders.hold
