"""Files in an image: what CRIU saved of a process tree goes to the store beside its device memory, and comes back."""

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imaging import MANY, brought, bytes_of, check, contents, described, flipped, folder_of, imaged, read, write
from msgspec.structs import replace

from gcr.errors import UsageError
from gcr.hashing import hash_bytes
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import Entry
from gcr.image.files.imagedfile import ImagedFile, name_of_memory
from gcr.image.files.manifest import Cut, Manifest
from gcr.image.pack.format import SUFFIX
from gcr.image.pack.writer import PackWriter
from gcr.image.read import folder as folder_module
from gcr.image.read.folder import bring_folder
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.image.write.placing import Counts
from gcr.image.write.publishing import Contents
from gcr.imageerrors import Damaged

pytestmark = pytest.mark.on_disk

PAGE = 4096
SOME = {"pages-1.img": bytes_of(1, MANY), "inventory.img": b"few", "empty.img": b"", "zeros.img": bytes(MANY)}


def sizes_of(draw: Callable[..., Any], size: int) -> list[int]:
    """Draws the sizes of chunks that make up `size` bytes."""
    found = []
    while size:
        found.append(min(size, draw(st.integers(1, CHUNK_BYTES))))
        size -= found[-1]
    return found


@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_goes_in_comes_out_of_any_sizes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    there = tmp_path_factory.mktemp("files")
    lengths = data.draw(st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=4))
    files = {f"file-{number}": bytes_of(number, length) for number, length in enumerate(lengths)}
    cuts = {name: sizes_of(data.draw, len(file)) for name, file in files.items() if data.draw(st.booleans())}
    memory = [bytes_of(77, data.draw(st.integers(1, 2 * CHUNK_BYTES)))]
    imaged(Store(there / "store"), "one", folder_of(there / "in", files), memory, cuts)
    assert brought(Store(there / "store"), "one", there / "out") == files
    assert read(Store(there / "store"), "one") == memory
    check(Store(there / "store"), "one")


def test_small_files_are_named_and_written_together(
    plain: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU makes some fifty for a process."""
    placed, real = list[int](), PackWriter.place

    def place(self: PackWriter, chunks: Sequence[tuple[bytes, int]]) -> Sequence[Entry]:
        placed.append(len(chunks))
        return real(self, chunks)

    monkeypatch.setattr(PackWriter, "place", place)
    files = {f"core-{number}.img": bytes_of(number, 3000) for number in range(50)} | {"empty.img": b""}
    assert len(imaged(plain, "one", folder_of(tmp_path / "in", files)).files) == 51
    assert placed == [50]
    assert brought(plain, "one", tmp_path / "out") == files


def test_a_folder_comes_back_without_logs(store: Store, tmp_path: Path) -> None:
    memory = [bytes_of(2, MANY), bytes_of(3, 5000)]
    made = imaged(store, "one", folder_of(tmp_path / "in", {**SOME, "dump.log": b"said"}), memory)
    hashes = store.images.hashes(made)
    of_memory = b"".join(hash_bytes(each, hashes.key, CHUNK_BYTES) for each in memory)
    assert hashes.digests == of_memory.ljust(len(hashes.digests), b"\0"), "files are not hashed as a device hashes"
    assert len(hashes.digests) > len(of_memory)
    assert brought(store, "one", tmp_path / "out") == SOME
    with ImageReader(store, "one") as reader:
        assert contents(reader) == memory
        assert [*reader.files] == sorted(SOME)


def test_the_next_image_writes_what_changed(store: Store, tmp_path: Path) -> None:
    imaged(store, "one", folder_of(tmp_path / "in", SOME))
    assert imaged(store, "two", tmp_path / "in").costs.bytes_written == 0
    (tmp_path / "in/pages-1.img").write_bytes(SOME["pages-1.img"][:-1] + b"!")
    assert imaged(store, "three", tmp_path / "in").costs.bytes_written == MANY % CHUNK_BYTES


def test_an_image_without_files_is_of_the_first_format(plain: Store, tmp_path: Path) -> None:
    write(plain, "one", [b"some"])
    document = json.loads((plain.path / "images/one.json").read_text())
    assert document["format"] == 1 and "files" not in document["image"]
    imaged(plain, "two", folder_of(tmp_path / "in", SOME))
    document = json.loads((plain.path / "images/two.json").read_text())
    assert document["format"] == 2 and len(document["image"]["files"]) == len(SOME)


@pytest.mark.parametrize("takes", [5000, 0])
def test_a_folder_that_takes_few_bytes_at_a_time_has_all_and_one_that_is_full_says_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: int
) -> None:
    """Chunks with rests of blocks are several pieces of one write. An error is the folder's, and not the store's."""
    content, pwritev = bytes_of(5, MANY), os.pwritev
    imaged(
        store, "one", folder_of(tmp_path / "in", {"pages-1.img": content}), (), {"pages-1.img": [5001] * 157 + [5371]}
    )

    def some(fd: int, pieces: Sequence[memoryview], at: int) -> int:
        if not takes:
            raise OSError(errno.ENOSPC, "no room")
        return pwritev(fd, [pieces[0][:takes]], at)

    monkeypatch.setattr(os, "pwritev", some)
    if takes:
        assert brought(store, "one", tmp_path / "out") == {"pages-1.img": content}
    else:
        with pytest.raises(OSError, match="no room") as full:
            brought(store, "one", tmp_path / "out")
        assert full.value.errno == errno.ENOSPC


def test_no_byte_of_a_damaged_file_is_handed_on(plain: Store, tmp_path: Path) -> None:
    imaged(plain, "one", folder_of(tmp_path / "in", {"pages-1.img": SOME["pages-1.img"]}))
    (pack,) = (plain.path / "packs").glob(f"*{SUFFIX}")
    flipped(pack, PAGE + CHUNK_BYTES + 5, 3)
    with pytest.raises(Damaged):
        brought(plain, "one", tmp_path / "out")
    there = (tmp_path / "out/pages-1.img").read_bytes()
    assert there[CHUNK_BYTES : 2 * CHUNK_BYTES] == bytes(CHUNK_BYTES)


def test_zeros_take_no_room_in_the_folder(plain: Store, tmp_path: Path) -> None:
    text = bytes(8 * CHUNK_BYTES) + b"x" * CHUNK_BYTES + bytes(5)
    imaged(plain, "one", folder_of(tmp_path / "in", {"pages-1.img": text}))
    brought(plain, "one", tmp_path / "out")
    found = tmp_path / "out/pages-1.img"
    assert found.read_bytes() == text and CHUNK_BYTES <= found.stat().st_blocks * 512 < 2 * CHUNK_BYTES


def test_small_files_are_read_together_and_each_has_its_own_bytes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are read at once, or fewer, and a large one."""
    files = {f"core-{number}.img": bytes_of(number, 3000 * number) for number in range(40)}
    files |= {"pagemap-1.img": bytes(5000), "pages-1.img": bytes_of(50, 3 * CHUNK_BYTES)}
    imaged(store, "one", folder_of(tmp_path / "in", files))
    monkeypatch.setattr(folder_module, "_TOGETHER", 200_000)
    assert brought(store, "one", tmp_path / "out") == files


def test_a_file_in_the_way_is_not_written_to(plain: Store, tmp_path: Path) -> None:
    imaged(plain, "one", folder_of(tmp_path / "in", SOME))
    folder_of(tmp_path / "out", {"inventory.img": b"mine"})
    with ImageReader(plain, "one") as reader, pytest.raises(FileExistsError):
        bring_folder(reader, tmp_path / "out")
    assert (tmp_path / "out/inventory.img").read_bytes() == b"mine"


def test_a_file_that_the_image_has_not_is_refused(plain: Store, tmp_path: Path) -> None:
    imaged(plain, "one", folder_of(tmp_path / "in", SOME))
    with ImageReader(plain, "one") as reader:
        for name, size in (("another.img", 3), ("inventory.img", 2), ("inventory.img", 4)):
            with pytest.raises(UsageError):
                reader.read_file(name, memoryview(bytearray(size)))


NONSENSE: dict[str, Sequence[ImagedFile]] = {
    "no name": [ImagedFile("", 0)],
    "outside": [ImagedFile("../x", 0)],
    "the folder above": [ImagedFile("..", 0)],
    "a command to a terminal": [ImagedFile("\x1b[2J", 0)],
    "a long name": [ImagedFile("x" * 256, 0)],
    "twice": [ImagedFile("x", 0), ImagedFile("x", 0)],
    "less than nothing": [ImagedFile("x", -1)],
    "no number": [ImagedFile("x", True)],
    "other bytes": [ImagedFile("x", 3, (1, 1))],
    "an empty chunk": [ImagedFile("x", 3, (3, 0))],
    "a chunk that is too large": [ImagedFile("x", CHUNK_BYTES + 1, (CHUNK_BYTES + 1,))],
}


@pytest.mark.parametrize("files", NONSENSE.values(), ids=NONSENSE)
def test_a_manifest_with_files_that_make_no_sense_is_damaged(files: Sequence[ImagedFile]) -> None:
    manifest = replace(_manifest(), files=files)
    with pytest.raises(Damaged):
        Manifest.from_bytes(manifest.to_bytes(), "one")


def test_files_of_processes_are_in_an_image_of_processes_alone() -> None:
    manifest = replace(_manifest(), files=[ImagedFile("x", 0)])
    assert Manifest.from_bytes(manifest.to_bytes(), "one") == replace(manifest, files=(ImagedFile("x", 0),))
    with pytest.raises(Damaged):
        Manifest.from_bytes(replace(manifest, cut=Cut.DEVICE).to_bytes(), "one")


def test_a_round_of_a_migration_has_memory_and_no_other_files() -> None:
    piece = ImagedFile(name_of_memory("7", 0), 0)
    manifest = replace(_manifest(), cut=Cut.DEVICE, files=(piece,))
    text = manifest.to_bytes()
    assert json.loads(text)["format"] == 5
    assert json.dumps(json.loads(text), indent=1).encode() == text, (
        "as any gcr has written it: its seal is of this text"
    )
    assert Manifest.from_bytes(manifest.to_bytes(), "one") == manifest
    with pytest.raises(Damaged):
        Manifest.from_bytes(replace(manifest, files=(piece, ImagedFile("x", 0))).to_bytes(), "one")


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_format_has_its_own_fields(number: int) -> None:
    """Of format 1 with files, of format 2 without, and of format 5 with processes: none is written by any gcr."""
    manifest = replace(_manifest(), files=() if number == 2 else [ImagedFile("x", 0)])
    document = json.loads(manifest.to_bytes())
    digest = name_of(json.dumps(document["image"], sort_keys=True).encode()).hex()
    with pytest.raises(Damaged):
        Manifest.from_bytes(json.dumps({**document, "format": number, "digest": digest}).encode(), "one")


def _manifest() -> Manifest:
    return replace(described("one", [])(Contents((), bytes(32), bytes(32), Counts())), cut=Cut.PROCESS)
