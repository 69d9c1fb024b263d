"""An arena, and the ranges that it pins; no test leaves any, or a descriptor."""

import contextlib
from pathlib import Path

import pytest
from arenas import Pins, make


def open_descriptors():
    """(number, file it refers to) of each descriptor of this process."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add((fd, fd.readlink()))
    return found


@pytest.fixture
def pins():
    return Pins()


@pytest.fixture(autouse=True)
def nothing_leaks(pins):
    before = open_descriptors()
    yield
    assert pins.now == {}
    assert open_descriptors() - before == set()  # another test's may close meanwhile, when its objects are collected


@pytest.fixture
def arena(pins):
    made = make(pins)
    yield made
    made.close()
