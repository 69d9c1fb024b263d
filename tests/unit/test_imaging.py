"""The begin of a checkpoint's image, and its new begin after the end of a process."""

import os
import subprocess
import time
from typing import Any

import pytest

from gcr.api.requests import CheckpointRequest
from gcr.daemon.images.imaging import Imaging, asked_for
from gcr.daemon.permission import Caller
from gcr.errors import GcrError

REQUEST = CheckpointRequest(image="warm", store="/store", target="llm")


class Helper:
    """A process that has claimed the name, and lets go of it some time after its channel is closed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sh", "-c", "read line; sleep 0.5"], stdin=subprocess.PIPE)
        self.pid, self.channel = self.process.pid, self

    def begin(self, *_: Any) -> None: ...

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()


def test_an_image_is_not_in_its_own_way_when_it_is_begun_again() -> None:
    helpers: list[Helper] = []

    def start(_acting: object) -> Any:
        assert all(helper.process.poll() is not None for helper in helpers), "the former helper has the name still"
        helpers.append(Helper())
        return helpers[-1]

    former: list[Imaging] = []
    for _ in range(2):
        imaging = asked_for(REQUEST, [], start, time.monotonic(), 10.0, Caller(os.getuid()), former)
        assert imaging and imaging.ready() is helpers[-1]
        imaging.close()
    assert len(helpers) == 2
    for helper in helpers:
        helper.process.wait(10)


def test_a_mistake_while_it_begins_is_no_image_and_no_success() -> None:
    def start(_acting: object) -> Any:
        raise KeyError("free")

    imaging = asked_for(REQUEST, [], start, time.monotonic(), 10.0, Caller(os.getuid()), [])
    assert imaging
    with pytest.raises(GcrError, match="internal error"):
        imaging.ready()
