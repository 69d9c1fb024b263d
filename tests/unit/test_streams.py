"""Chunks that come in any order, and the image helper's part of what passes through a ring."""

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, described, mapped, table
from msgspec.structs import replace

from gcr.criu import messages
from gcr.errors import RolledBack, UsageError
from gcr.hashing import CHUNK_BYTES
from gcr.image.chunks.lines import by_device
from gcr.image.chunks.windows import ImagedLine, lines_of
from gcr.image.crypto.cipher import Cipher
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.placing import Placing
from gcr.image.write.writer import ImageWriter
from gcr.image_helper.service import ImageService
from gcr.image_helper.streaming import Streams
from gcr.imageerrors import StoreBusy
from gcr.memory.addresses import round_up
from gcr.memory.layout import SealedTable
from gcr.memory.memfiles import filled_memfd, is_held_still
from gcr.protocol.operations import image as ops

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


@settings(max_examples=12)
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


NOBODY = cast("Any", SimpleNamespace(progress=lambda _done: None))  # hears how far it is
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


def test_the_chunks_of_the_store_are_sorted_before_one_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job stands still while its chunks are looked for; it runs when the name is claimed."""
    sorted_by_name = threading.Event()
    monkeypatch.setattr(Placing, "prepare", lambda _placing: sorted_by_name.set())
    service = ImageService()
    try:
        service.writing.begin(ops.Begin(str(tmp_path / "store"), False, "warm", None), [])
        assert sorted_by_name.wait(10)
    finally:
        service.finish()


def test_what_the_files_of_the_processes_are_cut_with_is_loaded_while_their_device_memory_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are there."""
    loaded = threading.Event()
    monkeypatch.setattr(messages, "load", loaded.set)
    with passing(7, "GPU-0", [2 * SLOT], 1) as each, brought(Store(tmp_path / "store"), each, 2) as service:
        assert not loaded.is_set()
        service.writing.write(FACTS, NOBODY, held=True)
        assert loaded.wait(10)


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
