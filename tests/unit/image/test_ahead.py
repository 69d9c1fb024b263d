"""Packs that are sent ahead: an image that is written into several of them, of which others may have the first."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from imaging import MANY, brought, bytes_of, check, described, folder_of, mapped, read
from msgspec.structs import replace

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.files import ahead
from gcr.image.files.manifest import Cut
from gcr.image.pack.format import Pack
from gcr.image.store.store import Store
from gcr.image.write import part
from gcr.image.write import writer as writing
from gcr.image.write.folder import add_folder
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged

pytestmark = pytest.mark.on_disk

MEMORY = [bytes_of(1, MANY), bytes(CHUNK_BYTES), bytes_of(2, MANY)]
FILES = {
    "a.img": b"few",
    "pages-1.img": bytes_of(3, 9 * CHUNK_BYTES),
    "pages-2.img": bytes_of(1, MANY),
    "z.img": b"last",
}


@contextmanager
def begun(store: Store, name: str = "warm") -> Iterator[ImageWriter]:
    """Yields the writer of an image, the memory of which others may have."""
    with ImageWriter(store, name, threads=3) as writer:
        writer.add((mapped(data), ()) for data in MEMORY)
        writer.send_ahead()
        yield writer


def finish(writer: ImageWriter, folder: Path) -> None:
    files = add_folder(writer, folder, {}, {})
    plain = described(writer.name, [len(data) for data in MEMORY])
    writer.commit(lambda found: replace(plain(found), cut=Cut.PROCESS, files=files))


def noted(store: Store, name: str = "warm") -> list[Pack]:
    paths = sorted((store.path / "images").glob(f"{name}.ahead*"))
    return [ahead.noted(path.read_bytes(), path) for path in paths]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "AHEAD_BYTES", 2 * CHUNK_BYTES)
    monkeypatch.setattr(part, "GROUP_BYTES", 2 * CHUNK_BYTES)  # a part may be larger by one of these


def test_packs_sent_ahead_are_whole_and_the_image_is_of_all_of_them(store: Store, tmp_path: Path) -> None:
    with begun(store) as writer:
        (first,) = noted(store)
        assert store.packs.has(first) and store.images.names() == []
        finish(writer, folder_of(tmp_path / "in", FILES))
    manifest, sent = store.images.manifest("warm"), noted(store)
    assert manifest.packs == tuple(sent) and len(sent) == 6
    assert (
        manifest.costs.bytes_written == 2 * MANY + len(b"few" + b"last") + 9 * CHUNK_BYTES
    )  # each chunk once, in one pack
    assert read(store, "warm") == MEMORY
    assert brought(store, "warm", tmp_path / "out") == FILES
    check(store, "warm")


def test_an_image_without_files_is_of_the_pack_that_was_sent(store: Store) -> None:
    with begun(store) as writer:
        writer.commit(described("warm", [len(data) for data in MEMORY]))
    assert store.images.manifest("warm").packs == tuple(noted(store))
    assert len([*store.packs.folder.iterdir()]) == 1
    check(store, "warm")


def test_the_next_image_takes_chunks_of_each_pack(store: Store, tmp_path: Path) -> None:
    with begun(store) as writer:
        finish(writer, folder_of(tmp_path / "in", FILES))
    with begun(store, "next") as writer:
        finish(writer, tmp_path / "in")
    assert store.images.manifest("next").costs.bytes_written == 0
    assert noted(store, "next") == []
    check(store, "next")


def test_nothing_is_left_of_an_image_that_is_given_up(store: Store, tmp_path: Path) -> None:
    """Its packs stay until the next clean-up: they may have been sent."""
    with pytest.raises(KeyError), begun(store):
        raise KeyError
    assert store.images.names() == [] and len(noted(store)) == 1
    store.clean()
    assert noted(store) == [] and [*store.packs.folder.iterdir()] == []


def test_notes_go_with_their_image(store: Store, tmp_path: Path) -> None:
    with begun(store) as writer:
        finish(writer, folder_of(tmp_path / "in", FILES))
    store.clean()
    assert len(noted(store)) == 6
    store.remove(["warm"])
    assert noted(store) == [] and [*store.packs.folder.iterdir()] == []


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"id": "../x", "seal": "00", "bytes": 8192}'])
def test_what_is_no_note_is_refused(text: bytes) -> None:
    with pytest.raises(Damaged):
        ahead.noted(text, "somewhere")
