"""Images on disk: what was written comes back, and nothing is stored twice."""

import errno
import hashlib
import resource
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_example import DOCUMENT, documented, example
from imaging import CIPHERS, MANY, bytes_of, check, described, files, mapped, read, write
from msgspec.structs import replace

from gcr.cli.picture import of_image
from gcr.hashing import HashKey
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK, Entry
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.disk.threads import AHEAD, all_of
from gcr.image.files.anatomy import origins, phases, repeated_bytes, stop_s
from gcr.image.files.manifest import Manifest
from gcr.image.pack.reader import PackReader
from gcr.image.pack.writer import PackWriter
from gcr.image.store.images import Images
from gcr.image.store.store import Store
from gcr.image.write.known import Known
from gcr.image.write.publishing import Contents
from gcr.image.write.rate import Rate
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, StoreUnusable

pytestmark = pytest.mark.on_disk


def test_what_was_written_comes_back(store: Store) -> None:
    allocations = [bytes_of(1, MANY), bytes(MANY), bytes_of(2, 100), bytes_of(1, CHUNK_BYTES)]
    written = write(store, "warm", allocations)
    assert store.images.manifest("warm") == written
    assert read(store, "warm") == allocations
    check(store, "warm")
    zeros = MANY
    assert (written.costs.bytes_total, written.costs.bytes_zero) == (sum(map(len, allocations)), zeros)
    assert written.costs.bytes_written == MANY + 100, "a chunk is stored once, whichever allocation has it"


def test_an_image_may_have_more_packs_than_a_process_may_have_files(plain: Store) -> None:
    """An image that hardly changes is built upon hundreds of earlier ones."""
    allocations = [bytes_of(number, 100) for number in range(40)]
    for number in range(1, len(allocations) + 1):
        write(plain, f"i{number}", allocations[:number])
    last = f"i{len(allocations)}"
    assert len(plain.images.manifest(last).packs) == len(allocations)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    few = [number for number in range(1000) if number not in used][:20]
    resource.setrlimit(resource.RLIMIT_NOFILE, (few[-1], hard))
    try:
        check(plain, last)
        assert read(plain, last) == allocations
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_may_know_of_many_devices(store: Store) -> None:
    """Ten and more: as text they have another order than as numbers, and the digest is over both."""
    known = {ordinal: f"GPU-{ordinal}" for ordinal in range(16)}
    made = described("one", [5])

    def of_many(contents: Contents) -> Manifest:
        image = made(contents)
        (process,) = image.processes
        return replace(image, processes=(replace(process, table=replace(process.table, ordinals=known)),))

    with ImageWriter(store, "one", threads=1, key=HashKey.random()) as writer:
        writer.add([(mapped(b"bytes"), ())])
        writer.commit(of_many)
    (process,) = store.images.manifest("one").processes
    assert process.table.ordinals == known


def test_an_image_of_the_same_bytes_writes_none(store: Store) -> None:
    allocations = [bytes_of(1, MANY), bytes(MANY)]
    first, second = (write(store, name, allocations) for name in ("one", "two"))
    assert (first.costs.bytes_written, second.costs.bytes_written) == (MANY, 0)
    assert second.packs == first.packs
    assert read(store, "two") == allocations


def test_what_is_zero_is_stored_nowhere(store: Store) -> None:
    write(store, "nothing", [bytes(MANY)])
    assert files(store) == ["images/nothing.chunks", "images/nothing.hashes", "images/nothing.json"]
    assert read(store, "nothing") == [bytes(MANY)]


names = st.builds(lambda first, rest: bytes([first] * 8 + [rest] * 24), st.integers(0, 3), st.integers(0, 40))


@settings(max_examples=40)
@given(st.lists(st.lists(names, unique=True, max_size=30), max_size=4), st.lists(names))
@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
def test_a_chunk_is_found_in_each_pack_that_has_it(
    cipher: Cipher, packs: list[list[bytes]], others: list[bytes]
) -> None:
    """Also where many names begin alike."""
    with TemporaryDirectory() as folder:
        known, expected = Known(), defaultdict[bytes, list[tuple[str, int]]](list)
        sizes = dict[str, dict[int, int]]()
        for names in packs:
            pack = packed(Path(folder), names, cipher)
            known.add(pack)
            for entry in pack.chunks.all().entries:
                expected[entry.name].append((pack.pack.id, entry.block))
            sizes[pack.pack.id] = {1 + number: BLOCK for number in range(len(names))}
        for name in {*others, *expected}:
            assert [*known.places(name)] == expected[name]
        assert {pack: known.sizes(pack) for pack in sizes} == sizes
        shunned = {*[*sizes][:1]}
        asked = [*others, *chain(*packs)]
        for at, name in enumerate(asked):
            places = [place for place in expected[name] if place[0] not in shunned]
            run = known.run(b"".join(asked), at, lambda pack: pack not in shunned)
            assert (run is None) == (not places)
            if run:
                pack, blocks = run
                assert (pack, blocks[0]) == places[0] and blocks == [*range(blocks[0], blocks[0] + len(blocks))]
                there = {block: name for name, found in expected.items() for of, block in found if of == pack}
                assert [there[block] for block in blocks] == asked[at : at + len(blocks)]
                follows = asked[at + len(blocks) : at + len(blocks) + 1]
                assert not follows or there.get(blocks[-1] + 1) != follows[0]


def packed(folder: Path, names: Sequence[bytes], cipher: Cipher = PLAIN) -> PackReader:
    """A pack that says it has chunks of these names."""
    writer = PackWriter(folder, cipher, BLOCK)
    entries = writer.place([(name, 1) for name in names])
    if cipher is not PLAIN:  # an encrypted index has a tag of each
        writer.write(entries, [mapped(b"x") for _ in entries])
    return PackReader(folder / f"{writer.finish().id}.pack", cipher)


def test_what_a_store_has_takes_little_memory(tmp_path: Path) -> None:
    """Measures an image's writer before it writes: a store of 100 TiB has 400 million chunks."""
    many = 50_000
    pack = packed(tmp_path, [hashlib.sha256(number.to_bytes(8)).digest() for number in range(many)])
    tracemalloc.start()
    try:
        known = Known()
        known.add(pack)
        assert [*known.places(pack.index[:32])] == [(pack.pack.id, 1)]
        assert tracemalloc.get_traced_memory()[1] < 100 * many
    finally:
        tracemalloc.stop()


def test_an_image_that_could_not_be_read_is_not_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcr.image.write.publishing.MOST_MANIFEST", 100)
    with pytest.raises(StoreUnusable, match="so many allocations"):
        write(store, "warm", [bytes_of(1, 100)])
    monkeypatch.undo()
    with pytest.raises(Damaged, match="no text"):
        write(store, "warm", [bytes_of(1, 100)], job="a\nb")
    assert store.images.names() == []


def test_an_image_that_is_removed_while_others_clean_up_is_no_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    monkeypatch.setattr(Images, "names", lambda _images: ["gone", "warm"])
    assert store.clean() == 0
    check(store, "warm")


def test_a_folder_in_the_place_of_files_of_the_dead_stops_no_daemon(store: Store) -> None:
    folders = [
        store.images.folder / "gone.chunks",
        store.images.folder / "gone.json.new",
        store.packs.folder / f"{'0' * 32}.pack.new",
    ]
    for folder in folders:
        folder.mkdir(mode=0o700)
    write(store, "warm", [bytes_of(1, 100)])
    assert store.remove(["warm"]) > 0
    assert all(folder.is_dir() for folder in folders)


def test_an_image_whose_manifest_is_a_folder_is_not_removed_nor_any_beside_it(store: Store) -> None:
    write(store, "warm", [bytes_of(1, 100)])
    (store.images.folder / "wrong.json").mkdir(mode=0o700)
    (store.images.folder / "link.json").symlink_to("nowhere")
    with pytest.raises(Damaged, match="a folder"):
        store.remove(["warm", "link", "wrong"])
    check(store, "warm")
    store.remove(["link"])
    assert store.images.names() == ["warm", "wrong"]
    assert store.remove(["warm"]) == 0, "the needs of the other one are unknown"


def test_the_example_in_the_document_is_what_is_written() -> None:
    assert documented(DOCUMENT.read_text()) == example()


def test_no_faster_than_asked() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    rate = Rate(100.0, lambda: now[0], sleep)
    for _ in range(3):
        rate.spend(50)
    assert (slept, now) == ([0.5, 0.5], [1.0])
    now[0] = 9.0  # what was not used is not saved up
    rate.spend(1000)
    rate.spend(1)
    assert slept[2:] == [10.0]
    Rate(None, sleep=sleep).spend(1 << 40)
    assert len(slept) == 3


def test_small_allocations_are_written_together(store: Store) -> None:
    """Each by itself would keep one thread busy, and the disk with small writes."""
    data, writes, real = [bytes_of(seed, CHUNK_BYTES + seed) for seed in range(1, 16)], [0], PackWriter.write

    def counted(self: PackWriter, entries: Sequence[Entry], some: Sequence[memoryview]) -> None:
        writes[0] += 1
        real(self, entries, some)

    with patch.object(PackWriter, "write", counted):
        write(store, "warm", data)
    assert writes[0] == 1
    assert read(store, "warm") == data


def test_what_is_ahead_is_bounded_and_a_failure_is_the_last_of_it() -> None:
    made, done = [0], [0]

    def jobs() -> Iterator[int]:
        for number in range(6 * AHEAD):
            made[0] += 1
            yield number

    def work(number: int) -> None:
        time.sleep(0.001)
        assert made[0] <= done[0] + 2 * AHEAD + 3  # two threads, and the one that is being made
        done[0] += 1
        if number == 2 * AHEAD:
            raise KeyError(number)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as other:
        with pytest.raises(KeyError):
            all_of(jobs(), partial(one.submit, lambda number: number), partial(other.submit, work))
        over = done[0]
        assert 2 * AHEAD < over < 5 * AHEAD
        time.sleep(0.02)
        assert done[0] == over


def test_after_a_failed_write_its_memory_is_not_read_again(store: Store) -> None:
    """It is unmapped next."""
    working, real = [0, 0], PackWriter.write

    def write_some(self: PackWriter, entries: object, data: object) -> None:
        working[0] += 1
        try:
            if working[1] == 0:
                working[1] = 1
                raise OSError(errno.ENOSPC, "no room")
            time.sleep(0.2)
            real(self, entries, data)  # type: ignore[arg-type]
        finally:
            working[0] -= 1

    with patch.object(PackWriter, "write", write_some), ImageWriter(store, "warm", threads=4) as writer:
        with pytest.raises(StoreUnusable):
            writer.add([(mapped(bytes_of(1, 64 * CHUNK_BYTES * 8)), ())])
        assert working[0] == 0


def test_what_a_first_image_has_twice_was_not_in_the_store_before(store: Store) -> None:
    write(store, "warm", [bytes_of(1, MANY), bytes_of(1, MANY), bytes(MANY)])
    write(store, "next", [bytes_of(1, MANY)])
    whole = {name: store.images.manifest(name) for name in ("warm", "next")}
    twice = {name: repeated_bytes(each, store.images.references(each)) for name, each in whole.items()}
    assert twice == {"warm": MANY, "next": 0}
    assert origins(whole["warm"], MANY) == {"zero": MANY, "repeated": MANY, "shared": 0, "written": MANY}
    assert origins(whole["next"], 0) == {"zero": 0, "repeated": 0, "shared": MANY, "written": 0}


def test_how_long_the_program_stood_still_is_told(store: Store) -> None:
    """The time is told for a checkpoint after which the program ran on, too."""
    manifest = write(store, "warm", [bytes_of(1, MANY)])
    live = replace(
        manifest, timings={"stop": 1.0, "quiesced": 1.5, "snapshotted": 1.75, "running": 2.0, "drained": 9.0}
    )
    assert (stop_s(manifest), stop_s(live)) == (None, 1.0)
    assert ("stopped for", "1.00 s") in of_image(live, 0).facts
    assert [(each.name, each.begin) for each in phases(live)] == [("quiesce", 1.0), ("snapshot", 1.5), ("drain", 1.75)]
