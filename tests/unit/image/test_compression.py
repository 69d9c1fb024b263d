"""Compressed packs: every image comes back, a changed bit is found before the codec sees it, and old packs stay."""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, check, described, flipped, mapped, read, weights

from gcr.errors import LibraryMissing
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK
from gcr.image.files.manifest import Manifest
from gcr.image.pack import codec, pace
from gcr.image.pack.codec import WrongCode, decode, encode
from gcr.image.pack.layout import LAID, NewLayout
from gcr.image.pack.pace import Pacer, Packing
from gcr.image.pack.reader import PackReader
from gcr.image.pack.writer import PackWriter
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged

pytestmark = pytest.mark.on_disk


def write(store: Store, name: str, data: list[bytes], packing: Packing = "compressed") -> Manifest:
    with ImageWriter(store, name, threads=3, packing=packing) as writer:
        writer.add((mapped(each), ()) for each in data)
        return writer.commit(described(name, [*map(len, data)]))


def pack_of(store: Store, manifest: Manifest) -> PackReader:
    (pack,) = manifest.packs
    return store.packs.reader(pack)


WEIGHTS = weights(1, CHUNK_BYTES // 2)  # two chunks
DATA = [WEIGHTS, bytes_of(1, CHUNK_BYTES + 77), bytes(5000), weights(2, 9000, "d"), weights(3, 50_001, "e")]

# ---- the codec ------------------------------------------------------------------------------------------------------


@given(
    st.binary(max_size=300)
    | st.builds(lambda each, times: each * times, st.binary(min_size=1, max_size=20), st.integers(0, 3000))
    | st.builds(weights, st.integers(), st.integers(0, 9000), st.sampled_from("efd"))
)
@example(bytes(1 << 20))
def test_a_chunk_comes_back_from_its_code(data: bytes) -> None:
    code = encode(memoryview(data))
    if code is not None:
        assert len(code) < len(data)
        assert decode(memoryview(code), len(data)) == data


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_wrong_codes_are_refused_or_are_chunks_of_that_size(data: st.DataObject) -> None:
    """The codec itself has no digest. It raises one error, and never takes memory for more than the chunk."""
    good = bytearray(encode(WEIGHTS[:CHUNK_BYTES]) or b"")
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1) | st.integers(0, 40))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(good)) | st.just(len(good)))
    size = data.draw(st.sampled_from([CHUNK_BYTES, CHUNK_BYTES - 1, 8, 1]))
    try:
        assert len(decode(memoryview(good)[:cut], size)) == size
    except WrongCode:
        pass


def test_a_frame_that_claims_more_than_its_plane_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    zstd = codec.need_library()
    bomb = zstd.ZstdCompressor().compress(bytes(1 << 30))
    monkeypatch.setattr(codec, "_tools", lambda: pytest.fail("memory is taken for it"))
    with pytest.raises(WrongCode, match="another size"):
        decode(memoryview(b"\1" + bytes(7 * 1000) + bomb), 8000)


def test_floating_point_numbers_lose_the_repetitions_of_their_exponents() -> None:
    for format, most in (("f", 0.85), ("e", 0.85), ("d", 0.92)):
        data = weights(4, 65_536, format)
        assert len(encode(data) or data) < most * len(data)
    assert encode(os.urandom(CHUNK_BYTES)) is None


# ---- packs ----------------------------------------------------------------------------------------------------------


def test_every_byte_comes_back(store: Store) -> None:
    manifest = write(store, "warm", DATA)
    assert read(store, "warm") == DATA
    check(store, "warm")
    written = manifest.costs.bytes_written
    assert 0 < pack_of(store, manifest).pack.bytes < 0.95 * written
    assert pack_of(store, manifest).version == (3 if store.cipher is CIPHERS["plain"] else 4)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(weights, st.integers(0, 9), st.integers(1, 150_000), st.sampled_from("ef"))
        | st.builds(bytes_of, st.integers(0, 9), st.integers(1, 600_000))
        | st.builds(bytes, st.integers(1, 600_000)),
        max_size=4,
    ),
    st.sampled_from([*CIPHERS]),
)
def test_any_image_comes_back(tmp_path_factory: pytest.TempPathFactory, data: list[bytes], cipher: str) -> None:
    store = Store(tmp_path_factory.mktemp("any") / "store", CIPHERS[cipher])
    write(store, "warm", data)
    assert read(store, "warm") == data
    check(store, "warm")


def test_chunks_have_the_names_that_they_have_uncompressed(store: Store) -> None:
    """So each kind of pack has what the other lacks, and images of both are made of both."""
    write(store, "first", DATA, "plain")
    assert write(store, "again", DATA).costs.bytes_written == 0
    more = [*DATA, weights(7, 100_000)]
    assert write(store, "more", more).costs.bytes_written == 400_000
    assert write(store, "last", more, "plain").costs.bytes_written == 0
    assert len(store.images.manifest("last").packs) == 2
    store.remove(["first", "more"])
    for name, data in (("again", DATA), ("last", more)):
        assert read(store, name) == data
        check(store, name)
    store.remove(["again", "last"])
    assert not [*store.packs.folder.iterdir()]


def test_a_changed_bit_is_found_wherever_it_is(store: Store) -> None:
    manifest = write(store, "warm", DATA)
    pack = pack_of(store, manifest)
    drawn, size = random.Random(5), pack.pack.bytes
    places = [*(drawn.randrange(size) for _ in range(60)), 0, BLOCK, BLOCK + 3, pack.index_at, size - BLOCK, size - 1]
    for at in places:
        bit = drawn.randrange(8)
        flipped(pack.path, at, bit)
        with pytest.raises(Damaged):
            check(store, "warm")
        flipped(pack.path, at, bit)
        pack.path.with_suffix(".pack.bad").unlink(missing_ok=True)
    check(store, "warm")


def test_changed_bytes_reach_neither_the_codec_nor_the_reader(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write(store, "warm", [WEIGHTS])
    pack = pack_of(store, manifest)
    flipped(pack.path, BLOCK + 40, 3)
    monkeypatch.setattr("gcr.image.pack.reader.decode", lambda *_given: pytest.fail("it was decompressed"))
    target = bytearray(b"\xa5" * len(WEIGHTS))
    (run, *_) = pack.runs(0, len(pack.chunks), BLOCK)
    with pytest.raises(Damaged):
        pack.read(run, memoryview(target)[: run.size])
    assert target == b"\xa5" * len(WEIGHTS)


@pytest.mark.parametrize("lost", [1, BLOCK, 5 * BLOCK])
def test_a_truncated_pack_is_found(store: Store, lost: int) -> None:
    pack = pack_of(store, write(store, "warm", DATA))
    os.truncate(pack.path, pack.pack.bytes - lost)
    with pytest.raises(Damaged):
        read(store, "warm")


def packed(store: Store, data: list[bytes], order: list[int]) -> PackReader:
    """Returns a pack of chunks that have their places in the order of the data, and are written in another one."""
    pack = PackWriter(store.packs.folder, store.cipher, 1 << 20, Pacer(store.cipher.name_of, "compressed"))
    entries = [pack.place([(store.cipher.name_of(each), len(each))]) for each in data]
    for number in order:
        pack.write(entries[number], [mapped(data[number])])
    return store.packs.reader(pack.finish())


def test_chunks_lie_in_any_order(store: Store) -> None:
    data = [weights(number, CHUNK_BYTES // 4) for number in range(4)]
    for order in ([3, 2, 1, 0], [2, 0, 1, 3], [0, 1, 3, 2]):
        pack = packed(store, data, order)
        found = []
        for run in pack.runs(0, 4, 1 << 20):
            found.append(bytearray(run.size))
            pack.read(run, memoryview(found[-1]))
        assert b"".join(found) == b"".join(data)
        assert sum(pack.check()) > 0


LAYOUTS: dict[str, Callable[[list[tuple[int, int, bytes]]], object]] = {
    "two in one place": lambda laid: laid.__setitem__(1, laid[0]),
    "beyond the end": lambda laid: laid.__setitem__(0, (1 << 31, *laid[0][1:])),
    "a gap": lambda laid: laid.__setitem__(0, (laid[0][0], 1, laid[0][2])),
    "none": lambda laid: laid.__setitem__(0, (laid[0][0], 0, laid[0][2])),
    "longer than the chunk": lambda laid: laid.__setitem__(1, (laid[1][0], 200, laid[1][2])),
    "all before the end": lambda laid: laid.__setitem__(2, (laid[2][0], 1, laid[2][2])),
}


@pytest.mark.parametrize("what", LAYOUTS)
def test_a_layout_that_no_pack_has_is_refused(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digests are right: a program that writes wrong packs has made it."""
    store = Store(tmp_path / "store")
    real = NewLayout.records

    def forged(self: NewLayout, blocks: object) -> bytes:
        laid = [*LAID.iter_unpack(real(self, blocks))]  # type: ignore[arg-type]
        LAYOUTS[what](laid)
        return b"".join(LAID.pack(*each) for each in laid)

    monkeypatch.setattr(NewLayout, "records", forged)
    pack = packed(store, [WEIGHTS[:CHUNK_BYTES], bytes(100), WEIGHTS[CHUNK_BYTES:]], order=[1, 0, 2])
    with pytest.raises(Damaged, match="index is that of no pack"):
        pack._layout  # noqa: B018


def test_a_plain_pack_is_as_before(store: Store) -> None:
    for name, packing in (("plain", "plain"), ("sampled", "sampled")):
        pack = pack_of(store, write(store, name, [weights(len(name), 100_000)], packing))  # type: ignore[arg-type]
        assert pack.version == store.cipher.pack(pack.pack.id).version
        assert not pack.is_compressed


def test_without_the_library_it_is_refused_by_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "plain", [bytes_of(1, 100)], "plain")
    write(store, "warm", [WEIGHTS])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert read(store, "plain") == [bytes_of(1, 100)]
    with pytest.raises(LibraryMissing, match="zstandard") as caught:
        read(store, "warm")
    assert "gpu-cr[compression]" in caught.value.hint
    with pytest.raises(LibraryMissing):
        write(store, "other", [WEIGHTS])
    assert write(store, "again", [WEIGHTS], "plain").costs.bytes_written == 0  # names and places need no codec


# ---- rates ----------------------------------------------------------------------------------------------------------


def test_a_rate_counts_the_time_in_which_a_thread_was_at_work() -> None:
    now = [0.0]
    busy = pace.Busy(lambda: now[0])
    with busy.busy(10):
        now[0] = 2.0
        with busy.busy(5):
            now[0] = 3.0
    now[0] = 100.0
    with busy.busy(0):
        now[0] = 101.0
    assert (busy.bytes, busy.seconds) == (15, 4.0)
