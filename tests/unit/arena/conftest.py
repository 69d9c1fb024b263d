"""An arena, and the ranges that it pins; no test leaves any, or a descriptor."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from arenas import Pins, make


@pytest.fixture
def pins():
    return Pins()


@pytest.fixture(autouse=True)
def nothing_leaks(pins):
    before = list(Path("/proc/self/fd").iterdir())
    yield
    assert pins.now == {}
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)


@pytest.fixture
def arena(pins):
    made = make(pins)
    yield made
    made.close()
