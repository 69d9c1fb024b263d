"""The room of a head start: what was free while the job that leaves had all of its own, driver's part included."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon.commands.head_start import HeadStart
from gcr.engine.turns import Turns
from gcr.errors import PeerGone
from gcr.protocol.operations.worker import CopyName

DEVICE, HANDLE = "GPU-00000000-0000-0000-0000-000000000001", 10


class Worker:
    """A device with so many bytes free, where pieces are made of handles of ten bytes."""

    def __init__(self, free: int) -> None:
        self.device, self.free, self.made, self.fails = DEVICE, free, 0, False
        self.copies = self

    def knows(self, _copy: CopyName) -> bool:
        return True

    def spare(self) -> int:
        if self.fails:
            raise PeerGone("the worker died")
        return self.free

    def refill_ahead(self, _copy: CopyName, most: int, _begins: bool, _deadline: float) -> int:
        size = min(most, self.free, 3 * HANDLE) // HANDLE * HANDLE
        self.free -= size
        self.made += size
        return size


@contextmanager
def anywhere(_device: str) -> Any:
    yield


@pytest.fixture
def worker() -> Worker:
    return Worker(free=75)


@pytest.fixture
def start(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> HeadStart:
    node = SimpleNamespace(
        warm_worker=lambda *_: worker, residents=SimpleNamespace(coming=anywhere), turns=Turns(), control=None
    )
    target = SimpleNamespace(hold="1.1", copy_name=CopyName("1.1", 1))
    monkeypatch.setattr(HeadStart, "_parts", lambda _self: iter([(target, DEVICE)]))
    return HeadStart(cast("Any", node), cast("Any", SimpleNamespace(name="next", world=None)))


def test_the_room_that_the_driver_gives_up_meanwhile_is_not_for_it(worker: Worker, start: HeadStart) -> None:
    start.look()
    worker.free += 50  # the driver has saved the other process, and the ballast is not held yet
    start.begin()
    assert start._thread
    start._thread.join(10)
    start.end()
    assert (worker.made, worker.free) == (70, 55)


def test_a_device_that_did_not_say_how_much_is_free_gets_none(worker: Worker, start: HeadStart) -> None:
    worker.fails = True
    start.look()
    start.begin()
    assert start._thread
    start._thread.join(10)
    assert worker.made == 0
