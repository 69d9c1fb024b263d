"""A pack of which little is used is left: its chunks are written again where their bytes are at hand."""

import logging
from collections.abc import Sequence

import pytest
from imaging import bytes_of, described, mapped, read, write

from gcr.hashing.chunks import TILE_BYTES as CHUNK
from gcr.image.files.manifest import Manifest
from gcr.image.store.store import Store
from gcr.image.write import usage
from gcr.image.write.inherited import Allocation, Inherited
from gcr.image.write.writer import ImageWriter

DATA = bytes_of(1, 20 * CHUNK)
pytestmark = pytest.mark.on_disk


def of(*numbers: int) -> bytes:
    """Returns some of the chunks of the first pack."""
    return b"".join(DATA[number * CHUNK : (number + 1) * CHUNK] for number in numbers)


def begun(store: Store, users: Sequence[Sequence[int]]) -> str:
    """Writes a pack of twenty chunks, and images that use some of them. Returns its id; its own image is gone."""
    pack = write(store, "first", [DATA], chunk_bytes=CHUNK).packs[0].id
    for number, chunks in enumerate(users):
        write(store, f"user{number}", [of(*chunks)], chunk_bytes=CHUNK)
    store.remove(["first"])
    return pack


def refers(manifest: Manifest, pack: str) -> bool:
    return pack in {each.id for each in manifest.packs}


@pytest.mark.parametrize(
    "users, taken, expected",
    [
        ([range(20)], [3], True),  # dense
        ([[0], [1], [2], [3], [4]], [0], True),  # all images count
        ([[0], [1], [2], [3]], [4], True),  # and the new one
        ([[0]], [0, 1, 2, 3, 4], True),
        ([[0], [0, 1], [0, 1], [1, 0, 1, 0, 1, 0]], [0, 1], False),  # each chunk counts once
        ([[0], [1]], [0, 1, 2, 3], False),
    ],
)
def test_a_sparse_pack_is_left(
    store: Store, users: Sequence[Sequence[int]], taken: Sequence[int], expected: bool
) -> None:
    pack = begun(store, users)
    manifest = write(store, "new", [of(*taken), bytes_of(2, 100)], chunk_bytes=CHUNK)
    assert refers(manifest, pack) == expected
    assert manifest.costs.bytes_written == 100 + (0 if expected else len(taken) * CHUNK)
    assert read(store, "new") == [of(*taken), bytes_of(2, 100)]
    again = write(store, "again", [of(*taken), bytes_of(2, 100)], chunk_bytes=CHUNK)
    assert again.costs.bytes_written == 0, "what was written again lies in a dense pack"
    store.remove([name for name in store.images.names() if name.startswith("user")])
    assert ([*store.packs.folder.glob(f"{pack}.*")] != []) == expected
    assert read(store, "again") == [of(*taken), bytes_of(2, 100)]


def test_a_chunk_whose_bytes_are_not_at_hand_stays_in_a_sparse_pack(store: Store) -> None:
    pack = begun(store, [[0]])
    manifest = store.images.manifest("user0")
    references = store.images.references(manifest).part(0, 1)
    known = [Inherited(Allocation(CHUNK, references, bytes(16), manifest.packs), 0, 1)]
    with ImageWriter(store, "new", chunk_bytes=CHUNK) as writer:
        writer.add([(mapped(bytes(CHUNK)), known), (mapped(of(0)), ())])
        manifest = writer.commit(described("new", [CHUNK, CHUNK], chunk_bytes=CHUNK))
    assert refers(manifest, pack)
    assert manifest.costs.bytes_written == CHUNK, "the other one, at hand, was written again"
    assert read(store, "new") == [of(0), of(0)]


def test_images_that_go_do_not_count(plain: Store) -> None:
    pack = begun(plain, [range(20), [0]])
    with ImageWriter(plain, "new", chunk_bytes=CHUNK, going=["user0"]) as writer:
        writer.add([(mapped(of(0)), ())])
        assert not refers(writer.commit(described("new", [CHUNK], chunk_bytes=CHUNK)), pack)


def test_only_the_newest_of_many_images_count(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_IMAGES", 2)
    pack = begun(plain, [range(20), [0], [1]])
    assert not refers(write(plain, "new", [of(0)], chunk_bytes=CHUNK), pack)


@pytest.mark.parametrize("suffix", [".json", ".chunks"])
def test_an_image_that_cannot_be_read_does_not_count(
    plain: Store, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack = begun(plain, [range(20), [0]])
    (plain.images.folder / f"user0{suffix}").write_bytes(b"something else")
    with caplog.at_level(logging.INFO, "gcr.image"):
        assert not refers(write(plain, "new", [of(0)], chunk_bytes=CHUNK), pack)
    assert any("image user0 does not count" in record.message for record in caplog.records)
