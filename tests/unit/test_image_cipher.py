"""Encrypted stores: a user without the key reads nothing, changes nothing unseen, and is told so first."""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from image_example import DOCUMENT
from imaging import CIPHERS, KEY, bytes_of, check, described, flipped, mapped, read, write

from gcr.errors import LibraryMissing
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK, PLACED, Entry
from gcr.image.chunks.index import Index, Run
from gcr.image.crypto import aes
from gcr.image.crypto.cipher import PLAIN, Cipher, Forged, PackCipher
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.store.mark import MARK, NEW_MARK
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, StoreBusy, WrongImage, WrongKey

OURS, OTHER = CIPHERS["encrypted"], cipher_of(bytes(32))
DATA = [bytes_of(1, 3 * CHUNK_BYTES + 100), bytes_of(2, CHUNK_BYTES)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store", OURS)
    write(made, "warm", DATA)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_of_what_was_written_can_be_read(store: Store, tmp_path: Path) -> None:
    assert read(store, "warm") == DATA
    known = [data[at : at + 16] for data in DATA for at in range(0, len(data), 5000)]
    known += [word.encode() for word in ('"llm"', '"GPU-1"', '"nvidia"', '"versions"')]  # none that chance would write
    open_to_all = Store(tmp_path / "open")
    write(open_to_all, "warm", DATA)
    readable = b"".join(contents(open_to_all.path).values())
    assert [each for each in known if each not in readable] == []
    known += [
        name_of(DATA[1]),
        name_of(DATA[0][:CHUNK_BYTES]),
        OURS.name_of(DATA[1]),
        store.images.manifest("warm").beside.chunks,
    ]
    everything = b"".join(contents(store.path).values())
    assert not [each for each in known if each in everything]
    assert OURS.name_of(DATA[1]) not in (name_of(DATA[1]), OTHER.name_of(DATA[1]))


def blocks(store: Store) -> set[bytes]:
    """Returns the blocks of packs, without their headers."""
    return {
        data[at : at + BLOCK] for data in contents(store.packs.folder).values() for at in range(BLOCK, len(data), BLOCK)
    }


def test_two_stores_of_one_key_have_nothing_in_common_but_their_mark(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other", OURS)
    write(other, "warm", DATA)
    assert not blocks(store) & blocks(other)
    assert (store.path / MARK).read_bytes() == (other.path / MARK).read_bytes()


def test_no_nonce_is_used_twice_with_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: Counter[tuple[bytes, bytes]] = Counter()

    class Watched:
        def __init__(self, key: bytes) -> None:
            self._key, self._real = key, real(key)

        def encrypt(self, nonce: bytes, *rest: Any) -> bytes:
            used[self._key, nonce] += 1
            return self._real.encrypt(nonce, *rest)

        def encrypt_into(self, nonce: bytes, *rest: Any) -> int:
            used[self._key, nonce] += 1
            return self._real.encrypt_into(nonce, *rest)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    real = aes.AESGCM
    monkeypatch.setattr(aes, "AESGCM", Watched)
    for folder in ("one", "two"):
        store = Store(tmp_path / folder, OURS)
        for number in range(3):
            write(store, f"i{number}", [bytes_of(number, 70 * CHUNK_BYTES + 5), bytes(100), bytes_of(9, 100)])
        store.remove(["i0"])
        write(store, "i0", [bytes_of(0, 3 * CHUNK_BYTES)])
    assert len(used) > 400 and max(used.values()) == 1


@pytest.mark.parametrize(("has", "given"), [(OURS, OTHER), (OURS, PLAIN), (PLAIN, OURS)])
def test_another_key_than_the_stores_is_refused_and_nothing_changes(tmp_path: Path, has: Cipher, given: Cipher) -> None:
    store = Store(tmp_path / "store", has)
    write(store, "warm", DATA)
    before = contents(tmp_path)
    with pytest.raises(WrongKey):
        Store(store.path, given)
    assert contents(tmp_path) == before
    assert read(store, "warm") == DATA


def test_an_empty_store_becomes_an_encrypted_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    write(store, "warm", DATA)
    store.remove(["warm"])
    (store.packs.folder / f"{'0' * 32}.pack").write_bytes(DATA[0])  # of a writer that died
    encrypted = Store(store.path, OURS)
    assert not list(store.packs.folder.iterdir())
    write(encrypted, "warm", DATA)
    assert read(Store(store.path, OURS), "warm") == DATA


def test_a_writer_that_opened_it_before_it_became_encrypted_writes_nothing(tmp_path: Path) -> None:
    early = Store(tmp_path / "store")
    Store(early.path, OURS)
    with pytest.raises(WrongKey), ImageWriter(early, "warm"):
        pass
    assert not list(early.images.folder.iterdir())


def test_a_store_that_is_written_to_becomes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gcr.image.store.opening.MARK_SECONDS", 0.1)
    store = Store(tmp_path / "store")
    with ImageWriter(store, "warm") as writer:
        writer.add([(mapped(DATA[0]), ())])
        with pytest.raises(StoreBusy):
            Store(store.path, OURS)
        writer.commit(described("warm", [len(DATA[0])]))
    assert read(store, "warm") == DATA[:1]


@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
@pytest.mark.parametrize("left", [(), (NEW_MARK,), ("lock",), ("lock", NEW_MARK)])
def test_what_was_begun_is_a_store_all_the_same(tmp_path: Path, left: tuple[str, ...], cipher: Cipher) -> None:
    """Its maker was killed."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    for name in left:
        (folder / name).write_bytes(b"half a mark")
    write(Store(folder, cipher), "warm", DATA)
    assert read(Store(folder, cipher), "warm") == DATA


def test_a_key_may_come_before_all_folders_are_there(tmp_path: Path) -> None:
    """The maker of a store was killed between the first and the second."""
    folder = tmp_path / "store"
    (folder / "packs").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / MARK).touch(0o600)
    write(Store(folder, OURS), "warm", DATA)
    assert read(Store(folder, OURS), "warm") == DATA


def test_a_flipped_bit_of_the_mark_is_found(store: Store) -> None:
    mark = store.path / MARK
    for at in range(mark.stat().st_size):
        flipped(mark, at, at % 8)
        for cipher in (OURS, PLAIN):
            with pytest.raises(Damaged):
                Store(store.path, cipher)
        flipped(mark, at, at % 8)
    for size in range(1, mark.stat().st_size):
        short = mark.read_bytes()[:size]
        with pytest.raises(Damaged):
            OURS.check_mark(short, store.path)
    check(Store(store.path, OURS), "warm")


def test_a_mark_that_is_emptied_opens_nothing(store: Store) -> None:
    os.truncate(store.path / MARK, 0)
    before = contents(store.path)
    with pytest.raises(Damaged, match="empty"):
        Store(store.path, OURS)
    with pytest.raises(Damaged, match="encrypted"):
        read(Store(store.path), "warm")
    assert contents(store.path) == before


def swap(one: Path, one_at: int, other: Path, other_at: int, size: int) -> None:
    first, second = one.read_bytes()[one_at : one_at + size], other.read_bytes()[other_at : other_at + size]
    for path, at, data in ((one, one_at, second), (other, other_at, first)):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)


def test_chunks_that_change_places_are_found(store: Store) -> None:
    """Within a pack, and between two; a tag would have to move with them, and it is encrypted."""
    (pack,) = store.packs.folder.iterdir()
    swap(pack, BLOCK, pack, BLOCK + CHUNK_BYTES, CHUNK_BYTES)
    for look in (read, check):
        with pytest.raises(Damaged):
            look(store, "warm")
    swap(pack, BLOCK, pack, BLOCK + CHUNK_BYTES, CHUNK_BYTES)
    write(store, "other", [bytes_of(5, 3 * CHUNK_BYTES)])
    (other,) = (path for path in store.packs.folder.glob("*.pack") if path != pack)
    swap(pack, BLOCK, other, BLOCK, CHUNK_BYTES)
    for name in ("warm", "other"):
        with pytest.raises(Damaged):
            read(store, name)


def placed(entries: Sequence[Entry]) -> bytes:
    return b"".join(PLACED.pack(*entry[:3]) for entry in entries)


def test_a_chunk_is_of_its_pack_its_place_and_its_name_alone() -> None:
    """This holds also if its tag is moved with it."""
    disk, entry = memoryview(bytearray(2 * BLOCK)), Entry(b"n" * 32, 1, 100)
    pack = OURS.pack("0" * 32)
    pack.to_disk([entry], [mapped(DATA[0][:100])], disk)
    assert not any(disk[100:BLOCK])
    entry = Entry(*pack.record.unpack(pack.from_index(pack.to_index(placed([entry]), b"facts"), b"facts")))
    before = Entry(bytes(32), 1, BLOCK, bytes(16))

    def get(pack: PackCipher, entry: Entry) -> memoryview:
        entries = [before, entry][2 - entry.block :]
        index = Index(b"".join(starmap(pack.record.pack, entries)), pack.record, (entry.block + 1) * BLOCK)
        return pack.from_disk(Run(index, len(entries) - 1, len(entries)), disk[:BLOCK])[: entry.size]

    assert get(pack, entry) == DATA[0][:100]
    for other in (entry._replace(block=2), entry._replace(name=b"m" * 32), entry._replace(tag=bytes(16))):
        with pytest.raises(Forged):
            get(pack, other)
    with pytest.raises(Forged):
        get(OURS.pack("1" * 32), entry)
    with pytest.raises(Forged):
        pack.from_index(pack.to_index(placed([entry]), b"facts"), b"others")


@pytest.mark.parametrize("cipher", CIPHERS.values(), ids=CIPHERS)
def test_nothing_of_what_was_written_before_is_written_again(cipher: Cipher) -> None:
    """Memory serves again, and the rest of a block is zero."""
    sizes = [100, BLOCK, 3000]
    entries = [Entry(bytes(32), 1 + number, size) for number, size in enumerate(sizes)]
    stored = memoryview(bytearray(b"\xa5" * 4 * BLOCK))
    pack = cipher.pack("0" * 32)
    data = [bytes_of(3, size) for size in sizes]
    pack.to_disk(entries, [*map(mapped, data)], stored)
    for number, size in enumerate(sizes):
        assert not any(stored[number * BLOCK + size : (number + 1) * BLOCK])
    run = Index(pack.from_index(pack.to_index(placed(entries), b""), b""), pack.record, 4 * BLOCK).all()
    assert [*map(bytes, run.chunks(pack.from_disk(run, stored[: 3 * BLOCK])))] == data


def test_a_pack_under_another_ones_name_is_found(store: Store) -> None:
    write(store, "other", [bytes_of(5, 3 * CHUNK_BYTES)])
    one, other = sorted(store.packs.folder.iterdir())
    between = one.with_suffix(".between")
    one.rename(between), other.rename(one), between.rename(other)
    for name in ("warm", "other"):
        with pytest.raises(Damaged):
            read(store, name)
    assert write(store, "third", DATA).costs.bytes_written == sum(map(len, DATA)), "nothing is built upon them"


def test_an_image_under_another_name_is_found(store: Store) -> None:
    for suffix in ("json", "chunks"):
        shutil.copy(store.images.folder / f"warm.{suffix}", store.images.folder / f"cold.{suffix}")
    with pytest.raises(Damaged):
        store.images.manifest("cold")
    write(store, "other", DATA)
    shutil.copy(
        store.images.folder / "other.chunks", store.images.folder / "warm.chunks"
    )  # the same bytes, of another image
    with pytest.raises(Damaged):
        store.images.references(store.images.manifest("warm"))


def test_what_is_not_encrypted_is_not_taken(store: Store, tmp_path: Path) -> None:
    plain = Store(tmp_path / "plain")
    write(plain, "slipped", DATA)
    shutil.copytree(plain.path, store.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MARK))
    with pytest.raises(Damaged):
        store.images.manifest("slipped")
    written = write(store, "new", DATA)
    assert written.packs == store.images.manifest("warm").packs, "no image is built upon a pack that is not encrypted"


def test_a_newer_version_is_named_as_such(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aes.AesPack, "version", 5)
    monkeypatch.setattr(aes, "_FILE_VERSION", 2)
    write(store, "newer", DATA)
    monkeypatch.undo()
    with pytest.raises(WrongImage, match="version 2; this gcr reads 1"):
        store.images.manifest("newer")
    (path,) = (
        path for path in store.packs.folder.iterdir() if path.name[:32] != store.images.manifest("warm").packs[0].id
    )
    with pytest.raises(WrongImage, match="version 5; this gcr reads 4"):
        aes_reader(path)


def aes_reader(path: Path) -> None:
    from gcr.image.pack.reader import PackReader

    PackReader(path, OURS)


def test_the_reader_in_the_document_reads_what_was_written(store: Store) -> None:
    write(store, "two", [*DATA, bytes(CHUNK_BYTES + 7), bytes_of(3, 10)])
    found: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec(code, found)
    chunks = [DATA[0][at : at + CHUNK_BYTES] for at in range(0, len(DATA[0]), CHUNK_BYTES)] + [DATA[1]]
    assert list(found["image"](store.path, KEY, "warm")) == chunks
    assert list(found["image"](store.path, KEY, "two")) == [*chunks, b"", b"", bytes_of(3, 10)]
    assert found["mark"](KEY) == (store.path / MARK).read_bytes()


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcr.image.crypto.aes", None)
    with pytest.raises(LibraryMissing) as refused:
        cipher_of(bytes(32))
    assert "[encryption]" in refused.value.hint
    assert cipher_of(None) is PLAIN
