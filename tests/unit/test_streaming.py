"""Checkpoints straight to an image, in the engine: the rings, what is filled when, and failures of the image."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon.images.outlet import ImageOutlet
from gcr.drain import HandleSpec
from gcr.engine.node import Course
from gcr.engine.streaming import SLOTS, Stream, without_room
from gcr.errors import GcrError, Interrupted, NoRoom, PeerGone, RolledBack
from gcr.hashing import CHUNK_BYTES
from gcr.image.chunks.windows import ImagedLine
from gcr.imageerrors import ImageFailed, StoreUnusable
from gcr.job.states import State
from gcr.memory.layout import SealedHandle
from gcr.protocol.operations.operation import Done

SLOT = 2 << 20


@dataclass
class Worker:
    """A worker that checks its ring: no slot is filled while it is in use."""

    outlet: "Outlet"
    device: str = "GPU-0"
    room: int = 8
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)
    forgotten: int = 0
    copies = rings = property(lambda self: self)

    def make(self, _hold: str, _owner: str, _slot: int, most: int, least: int) -> tuple[int, list[int]]:
        self.asked.append((most, least))
        if self.room < least:
            raise NoRoom("host memory is 5 bytes short", missing=5)
        return min(most, self.room), []

    def forget_copy(self, _hold: str) -> None:
        self.forgotten += 1

    def fill(self, _hold: str, slot: int, window: tuple[int, int], _limit: float) -> None:
        assert slot not in self.outlet.busy, "it is being read"
        self.filled.append((slot, *window))


@dataclass
class Outlet:
    seconds: float = 0.0
    fails_at: int = -1
    busy: set[int] = field(default_factory=set)
    most: int = 0
    taken: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, _pid: int, _device: str, window: tuple[int, int, int]) -> None:
        self.busy.add(window[0])
        self.most = max(self.most, len(self.busy))
        time.sleep(self.seconds)
        self.busy.discard(window[0])
        self.taken.append(window)
        if 0 <= self.fails_at <= len(self.taken):
            raise PeerGone("the helper has died")


def target_of(*workers: Worker, state: State = State.HANDED_OVER) -> Any:
    process = SimpleNamespace(state=state)
    return SimpleNamespace(pid=7, copy_name="h", owner="llm/7", process=process, workers=lambda: [*workers])


def test_the_ring_of_one_device_goes_when_there_is_none_of_the_other() -> None:
    """Also where its worker died: the daemon would have the descriptors for as long as it lives."""
    made: list[int] = []

    class Ringed(Worker):
        def make(self, *_how: object) -> tuple[int, list[int]]:
            made.append(os.memfd_create("ring"))
            return 8, [made[-1]]

    class Dead(Worker):
        def make(self, *_how: object) -> tuple[int, list[int]]:
            raise PeerGone("the worker died")

    workers = [Ringed(cast("Any", None)), Dead(cast("Any", None), "GPU-1")]
    target = SimpleNamespace(pid=7, copy_name="7.8", owner="llm/7", workers=lambda: workers)
    stream = Stream(cast("Any", None), Course("checkpoint", 1, 60.0), SLOT, 5.0)
    with pytest.raises(PeerGone, match="the worker died"):
        stream.reserve([cast("Any", target)])
    with pytest.raises(OSError):
        os.fstat(made[0])


def stream_of(outlet: Outlet, sizes: Sequence[int], slots: int = 3, course: Course | None = None) -> Stream:
    made = Stream(cast("Any", outlet), course or Course("checkpoint", 1, 60.0), SLOT, 5.0)
    handles = [(SealedHandle(HandleSpec(n, size), "GPU-0", sum(sizes[:n])), 0) for n, size in enumerate(sizes)]
    made.rings[7, "GPU-0"] = slots, []
    made.lines[7, "GPU-0"] = ImagedLine.of(handles, CHUNK_BYTES), len(handles)
    return made


def test_a_slot_is_filled_again_once_it_is_free_and_others_meanwhile() -> None:
    outlet = Outlet(seconds=0.005)
    worker, told = Worker(outlet), list[Mapping[str, int]]()
    sizes = [9 * SLOT, 100, 7 * SLOT]
    done = stream_of(outlet, sizes).drain(target_of(worker), cast("Any", worker), told.append)
    assert (done.bytes, done.handles) == (sum(sizes), 3)
    assert sorted(outlet.taken) == sorted(worker.filled)
    assert sum(size for *_, size in outlet.taken) == sum(sizes)
    assert 1 < outlet.most <= 3 and not outlet.busy
    assert told[-1] == Done(sum(sizes))


def test_after_a_failure_no_slot_is_in_use_and_no_more_is_filled() -> None:
    outlet = Outlet(seconds=0.005, fails_at=4)
    worker = Worker(outlet)
    with pytest.raises(PeerGone):
        stream_of(outlet, [99 * SLOT]).drain(target_of(worker), cast("Any", worker), lambda _done: None)
    assert not outlet.busy and len(worker.filled) < 4 + 2 * 3


@pytest.mark.parametrize("why", ["beside", "cancelled", "ended"])
def test_what_would_be_taken_back_is_not_waited_for(why: str) -> None:
    outlet, course = Outlet(), Course("checkpoint", 1, 60.0)
    worker, stream = Worker(outlet), stream_of(outlet, [9 * SLOT], course=course)
    if why == "beside":
        with pytest.raises(ValueError):
            stream.or_stop(lambda: int("no number"))
    elif why == "cancelled":
        course.cancelled.set()
    target = target_of(worker, state=State.EXITED if why == "ended" else State.HANDED_OVER)
    kinds: Mapping[str, type[Exception]] = {"beside": RolledBack, "cancelled": Interrupted, "ended": PeerGone}
    with pytest.raises(kinds[why]):
        stream.drain(target, cast("Any", worker), lambda _done: None)
    assert not worker.filled


@pytest.mark.parametrize(("room", "slots"), [([8, 8], [8, 8]), ([8, 3], [8, 3]), ([2, 2], [2, 2])])
def test_every_device_has_a_ring(room: list[int], slots: list[int]) -> None:
    outlet = Outlet()
    workers = [Worker(outlet, f"GPU-{number}", each) for number, each in enumerate(room)]
    stream = Stream(cast("Any", outlet), Course("checkpoint", 1, 60.0), SLOT, 5.0)
    stream.reserve([target_of(*workers)])
    assert [found for found, _ in stream.rings.values()] == slots
    assert stream.ring_bytes == sum(slots) * SLOT


def test_where_one_device_has_no_room_for_a_ring_none_has_one() -> None:
    outlet = Outlet()
    workers = [Worker(outlet, "GPU-0", 8), Worker(outlet, "GPU-1", 1)]
    stream = Stream(cast("Any", outlet), Course("checkpoint", 1, 60.0), SLOT, 5.0)
    with pytest.raises(NoRoom, match="even of a ring of 2 slots") as caught:
        stream.reserve([target_of(*workers)])
    assert caught.value.missing == 5 and not stream.rings
    assert [most for most, _ in workers[0].asked] == [*SLOTS]  # fewer, so that the other may have some
    assert workers[0].forgotten == workers[1].forgotten == 1 + len(SLOTS)  # also what was reserved


# ---- the outlet --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unhurried", [True, False])
def test_without_a_deadline_of_the_callers_the_disk_may_take_its_time(unhurried: bool) -> None:
    course, begun = Course("checkpoint", 1, 300.0), list[bool]()
    imaging = SimpleNamespace(streamed=False, build_upon=lambda _course, _targets: None)
    outlet = ImageOutlet(cast("Any", imaging), course, unhurried, lambda: begun.append(imaging.streamed))
    outlet.prepare([])
    assert (course.timeout > 86400.0) == unhurried
    assert begun == [True]


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (StoreUnusable("full", hint="h"), ImageFailed),
        (PeerGone("dead"), ImageFailed),
        (Interrupted("left"), Interrupted),
    ],
)
def test_what_the_image_fails_of_is_said_of_the_image(raised: GcrError, seen: type[GcrError]) -> None:
    def fail(*_: object) -> None:
        raise raised

    order = SimpleNamespace(name="warm", patience=1.0)
    imaging = SimpleNamespace(order=order, claim=SimpleNamespace(store=SimpleNamespace(path="/s")), ready=fail)
    outlet = ImageOutlet(cast("Any", imaging), Course("checkpoint", 1, 60.0), False, lambda: None)
    with pytest.raises(seen) as caught:
        outlet.take(7, "GPU-0", (0, 0, 1))
    assert caught.value.hint == raised.hint
    outlet.withdraw()  # nothing was asked to be durable: the helper is not even asked


@pytest.mark.parametrize(
    ("hint", "more"),
    [("raise arena_share: docs/x", "raise arena_share: docs/x"), ("", "docs/troubleshooting.md#host-memory")],
)
def test_without_an_image_the_hint_names_one_and_keeps_the_first_hint(hint: str, more: str) -> None:
    error = without_room(NoRoom("5 bytes short", missing=5, hint=hint), imaged=False, live=False, copies=False)
    assert (error.message, error.missing) == ("5 bytes short", 5)
    assert error.hint == f"with --image NAME it goes straight to disk; {more}"
