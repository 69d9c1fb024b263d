"""Chunks that come in any order, and the helper's and the engine's part of what passes through a ring."""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gcr.daemon.images.outlet import ImageOutlet
from gcr.drain import HandleSpec
from gcr.engine.node import Course
from gcr.engine.streaming import SLOTS, Stream
from gcr.errors import GcrError, Interrupted, NoRoom, PeerGone, RolledBack, UsageError
from gcr.hashing import CHUNK_BYTES
from gcr.image.chunks.lines import by_device
from gcr.image.chunks.windows import ImagedLine, lines_of
from gcr.image.crypto.cipher import Cipher
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.service import ImageService
from gcr.image_helper.streaming import Streams
from gcr.imageerrors import ImageFailed, ImageNeeded, StoreBusy, StoreUnusable
from gcr.job.journal import DecisionRecord, Journal, KeptImage, ProcessDecision, standing
from gcr.job.states import State
from gcr.memory.addresses import round_up
from gcr.memory.layout import SealedHandle, SealedTable
from gcr.memory.memfiles import filled_memfd, is_held_still
from gcr.protocol.operations import image as ops

sys.path.insert(0, str(Path(__file__).parent))

from imaging import CIPHERS, bytes_of, described, mapped, table

SLOT = 2 << 20


@pytest.fixture(params=CIPHERS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return Store(tmp_path / "store", CIPHERS[request.param])


# ---- the writer --------------------------------------------------------------------------------------------------


def test_chunks_that_come_in_any_order_are_the_image(store: Store) -> None:
    data = [bytes_of(seed, size) for seed, size in ((1, 5 * CHUNK_BYTES + 7), (2, 100), (1, 2 * CHUNK_BYTES))]
    pieces = [each[at : at + CHUNK_BYTES] for each in data for at in range(0, len(each), CHUNK_BYTES)]
    numbered = [*enumerate(pieces)]
    random.Random(3).shuffle(numbered)
    with ImageWriter(store, "warm", threads=3) as writer:
        threads = [
            threading.Thread(target=writer.put, args=([(n, mapped(piece)) for n, piece in numbered[first::3]],))
            for first in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.commit(described("warm", [len(each) for each in data]))
    assert read(store) == data


def read(store: Store) -> list[bytes]:
    with ImageReader(store, "warm") as reader:
        found = []
        for process in reader.manifest.processes:
            for handle in process.table.handles:
                target = bytearray(handle.spec.size)
                reader.read(process.table.pid, handle.device, handle.offset, memoryview(target))
                found.append(bytes(target))
        return found


def test_an_image_that_lacks_a_chunk_is_not_committed(store: Store) -> None:
    with ImageWriter(store, "warm") as writer:
        writer.put([(0, mapped(b"a")), (2, mapped(b"c"))])
        with pytest.raises(RolledBack, match="chunk 1"):
            writer.commit(described("warm", [1, 1, 1]))
    assert store.images.names() == []


def test_a_chunk_comes_once(store: Store) -> None:
    with ImageWriter(store, "warm") as writer:
        writer.put([(0, mapped(b"a"))])
        with pytest.raises(UsageError, match="before"):
            writer.put([(0, mapped(b"b"))])


# ---- the helper --------------------------------------------------------------------------------------------------


@dataclass
class Passing:
    """The bytes of a device of a process, and the ring they pass through."""

    table: SealedTable
    line: bytes
    slots: int
    fd: int = -1

    def __enter__(self) -> "Passing":
        self.fd = filled_memfd(round_up(self.slots * SLOT))
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.fd)

    def fill(self, window: tuple[int, int, int]) -> None:
        slot, offset, size = window
        assert os.pwrite(self.fd, self.line[offset : offset + size], slot * SLOT) == size


def passing(pid: int, device: str, sizes: Sequence[int], seed: int, slots: int = 2) -> Passing:
    whole = table(sizes)
    own = 100 * int(device[-1])  # an id is one allocation of a process, whichever device it is on
    handles = tuple(replace(h, device=device, spec=replace(h.spec, id=h.spec.id + own)) for h in whole.handles)
    sealed = replace(whole, pid=pid, handles=handles, segments=(), ordinals={0: device})
    return Passing(sealed, bytes_of(seed, sum(sizes)), slots)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3 * SLOT), min_size=1, max_size=3), min_size=1, max_size=3), st.randoms())
@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
def test_what_passes_through_rings_is_the_image(
    tmp_path_factory: pytest.TempPathFactory, cipher: Cipher, sizes: list[list[int]], order: random.Random
) -> None:
    """Passes windows of several devices and processes, in any order."""
    store = Store(tmp_path_factory.mktemp("s") / "store", cipher)
    devices = [passing(7 + number // 2, f"GPU-{number % 2}", each, number) for number, each in enumerate(sizes)]
    streams = Streams(SLOT)
    with ImageWriter(store, "warm") as writer, all_open(devices, streams):
        todo = [(each, n, w) for each in devices for n, w in enumerate(line_of(each).windows(SLOT))]
        order.shuffle(todo)
        for each, number, (offset, size) in todo:
            (device,) = each.table.devices
            window = number % each.slots, offset, size
            each.fill(window)
            streams.take(writer, (each.table.pid, device), window)
        written = streams.written(writer)
        assert streams.total_bytes() == sum(map(sum, sizes)) == sum(size for size, _ in written.values())
        tables = streams.tables()
        manifest = writer.commit(of_tables(tables))
    with ImageReader(store, "warm") as reader:
        assert manifest.processes[0].table.segments
        for each in devices:
            (device,) = each.table.devices
            for handle in each.table.handles:
                target = bytearray(handle.spec.size)
                reader.read(each.table.pid, device, handle.offset, memoryview(target))
                assert target == each.line[handle.offset : handle.offset + handle.spec.size]
    for sealed in tables:  # a reader into host memory has room there
        for part in by_device(sealed):
            end = max(handle.offset + handle.spec.size for handle in part.handles)
            assert end <= sum(segment.size for segment in part.segments) < end + SLOT


def of_tables(tables: Sequence[SealedTable]) -> Callable[[Any], Any]:
    made = described("warm", [1])

    def of(contents: Any) -> Any:
        manifest = made(contents)
        return replace(manifest, processes=tuple(replace(manifest.processes[0], table=each) for each in tables))

    return of


def line_of(each: Passing) -> ImagedLine:
    (line,) = lines_of([each.table], CHUNK_BYTES).values()
    return line


@contextmanager
def all_open(devices: Sequence[Passing], streams: Streams) -> Iterator[None]:
    with ExitStack() as stack:
        for each in devices:
            stack.enter_context(each)
            streams.open(each.table, [each.fd], SLOT)
        stack.callback(streams.close)
        yield


def test_a_ring_is_held_as_long_as_it_is_read() -> None:
    streams = Streams(SLOT)
    with passing(7, "GPU-0", [100], 1) as each:
        streams.open(each.table, [each.fd], SLOT)
        assert is_held_still(each.fd)
        streams.close()
        assert not is_held_still(each.fd)


@pytest.mark.parametrize("window", [(2, 0, 100), (0, 50, 50), (0, 0, 99), (0, 0, 101)])
def test_what_is_no_window_is_not_taken(tmp_path: Path, window: tuple[int, int, int]) -> None:
    streams = Streams(SLOT)
    with passing(7, "GPU-0", [100], 1) as each, ImageWriter(Store(tmp_path / "store"), "warm") as writer:
        streams.open(each.table, [each.fd], SLOT)
        for place in ((7, "GPU-1"), (8, "GPU-0")):
            with pytest.raises(UsageError):
                streams.take(writer, place, (0, 0, 100))
        with pytest.raises(UsageError):
            streams.take(writer, (7, "GPU-0"), window)
        with pytest.raises(RolledBack):
            streams.written(writer)
        streams.close()


NOBODY = cast("Any", None)  # hears how far it is
FACTS = ops.Write("llm", "nvidia", True, {"GPU-0": "a model"}, {7: ops.ImagedAs(1, 1)}, 1.0, {})


@contextmanager
def brought(store: Store, each: Passing, windows: int) -> Iterator[ImageService]:
    """A helper that has taken the first windows of a line."""
    service = ImageService()
    service.writing.begin(ops.Begin(str(store.path), False, "warm", None), [])
    service.writing.streams.open(each.table, [each.fd], SLOT)
    service.writing.parent(ops.Parent(()), NOBODY)
    for number in range(windows):
        window = 0, number * SLOT, SLOT
        each.fill(window)
        service.writing.take(ops.Take(7, "GPU-0", window), NOBODY)
    try:
        yield service
    finally:
        service.finish()


def test_an_image_whose_last_window_never_came_is_not_written(tmp_path: Path) -> None:
    """The chunks that came do not tell how many the image has."""
    store = Store(tmp_path / "store")
    with (
        passing(7, "GPU-0", [2 * SLOT], 1) as each,
        brought(store, each, 1) as service,
        pytest.raises(RolledBack, match="never brought"),
    ):
        service.writing.write(FACTS, NOBODY)
    assert not store.images.names()


def test_a_ring_is_free_when_its_image_is_durable_and_the_image_is_kept_until_the_helper_ends(tmp_path: Path) -> None:
    """A later request for room is not told that an image is still being written."""
    store = Store(tmp_path / "store")
    with passing(7, "GPU-0", [2 * SLOT], 1) as each, brought(store, each, 2) as service:
        assert is_held_still(each.fd)
        service.writing.write(FACTS, NOBODY)
        assert not is_held_still(each.fd)
        with pytest.raises(StoreBusy):
            store.clean()
    assert store.images.names() == ["warm"]


def test_no_device_is_opened_late_or_twice(tmp_path: Path) -> None:
    """The numbers of chunks are those of all tables."""
    streams = Streams(SLOT)
    with (
        passing(7, "GPU-0", [100], 1) as one,
        passing(7, "GPU-1", [100], 2) as other,
        ImageWriter(Store(tmp_path / "store"), "warm") as writer,
    ):
        streams.open(one.table, [one.fd], SLOT)
        with pytest.raises(UsageError, match="already"):
            streams.open(one.table, [one.fd], SLOT)
        streams.take(writer, (7, "GPU-0"), (0, 0, 100))
        with pytest.raises(UsageError, match="already"):
            streams.open(other.table, [other.fd], SLOT)
        with pytest.raises(UsageError, match="one device"):
            Streams(SLOT).open(table([100]), [one.fd], SLOT)
        streams.close()


# ---- the engine --------------------------------------------------------------------------------------------------


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

    def fill(self, _hold: str, window: tuple[int, int, int], _limit: float) -> None:
        assert window[0] not in self.outlet.busy, "it is being read"
        self.filled.append(window)


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
    assert told[-1] == {"bytes": sum(sizes)}


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


# ---- the only copy -----------------------------------------------------------------------------------------------


def record(image: KeptImage | None) -> DecisionRecord:
    processes = (ProcessDecision(7, 8, {"GPU-1": 100}, {"GPU-1": 0}),)
    return DecisionRecord("llm", 9, "checkpoint", 1.5, processes, "nvidia", True, image=image)


@pytest.mark.parametrize("image", [None, KeptImage("/store", "warm", True)])
def test_a_decision_says_which_image_has_the_bytes(tmp_path: Path, image: KeptImage | None) -> None:
    journal = Journal(tmp_path / "journal")
    journal.decide(record(image))
    assert (
        [each.image for each in journal.records()]
        == [image]
        == [each.image for each in standing(tmp_path / "journal").records]
    )
    (tmp_path / "journal" / "other.json").write_text("{}")
    found = standing(tmp_path / "journal")
    assert (len(found.records), found.unreadable) == (1, {"other"}), "what is damaged is told, and left as it is"
    assert (tmp_path / "journal" / "other.json").exists()


def imaged(store: Store, only_copy: bool) -> None:
    with ImageWriter(store, "warm") as writer:
        writer.add([(mapped(bytes_of(1, 100)), {})])
        writer.commit(lambda contents: replace(described("warm", [100])(contents), only_copy=only_copy))


def test_what_a_job_needs_is_not_removed(store: Store) -> None:
    imaged(store, only_copy=True)
    with pytest.raises(ImageNeeded, match="llm"):
        store.remove(["warm"], lambda: {"warm": "llm"})
    assert read(store)
    assert store.remove(["warm"], dict) > 0 and store.images.names() == []


@pytest.mark.parametrize("only_copy", [True, False])
def test_a_needed_reader_is_asked_while_no_writer_writes(store: Store, only_copy: bool) -> None:
    """A job may be about to need it; where it was no only copy, none can be."""
    imaged(store, only_copy)
    asked: list[bool] = []
    with ImageWriter(store, "other"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcr.image.store.removal.NEEDED_SECONDS", 0.1)
        if only_copy:
            with pytest.raises(StoreBusy):
                store.remove(["warm"], lambda: asked.append(True) or {})  # type: ignore[func-returns-value]
        else:
            store.remove(["warm"], lambda: asked.append(True) or {})  # type: ignore[func-returns-value]
    assert store.images.names() == (["warm"] if only_copy else [])
    assert not asked


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
