"""Stores elsewhere, here in a folder: what arrives is whole, nothing moves twice, and nothing is trusted unseen."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier, Thread

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from imaging import CIPHERS, bytes_of, check, described, files, flipped, mapped, read, write

from gcr.errors import DeadlinePassed, LibraryMissing, UsageError
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK, PLACED
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import PULLED
from gcr.image.pack import format as packs
from gcr.image.pack.format import Pack
from gcr.image.remote.folder import Folder, remote_at
from gcr.image.remote.pull import pull
from gcr.image.remote.push import Moved, part_bytes, push
from gcr.image.remote.remote import Remote
from gcr.image.remote.transfer import PART, Transfer
from gcr.image.store.claim import Claim
from gcr.image.store.images import Images
from gcr.image.store.mark import MARK
from gcr.image.store.packs import Packs
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, ImageExists, NoSuchImage, StoreBusy, StoreUnusable, WrongImage, WrongKey

OTHER = cipher_of(bytes(32))
COMMON, OWN = bytes_of(1, 5 * CHUNK_BYTES), bytes_of(2, 3 * CHUNK_BYTES + 100)


@pytest.fixture(params=CIPHERS)
def cipher(request: pytest.FixtureRequest) -> Cipher:
    return CIPHERS[request.param]


@pytest.fixture
def store(tmp_path: Path, cipher: Cipher) -> Store:
    return Store(tmp_path / "store", cipher)


@pytest.fixture
def other(tmp_path: Path, cipher: Cipher) -> Store:
    """Returns the store to which images are pulled."""
    return Store(tmp_path / "other", cipher)


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Returns the folder of the remote; it does not exist yet."""
    return tmp_path / "far away"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for each chunk."""
    for module in ("pull", "push"):
        monkeypatch.setattr(f"gcr.image.remote.{module}.PART", CHUNK_BYTES)


@pytest.fixture
def as_bucket(away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the folder asked for objects, as a bucket is; no writer locks it."""
    away.mkdir()
    for module in ("pull", "push"):
        monkeypatch.setattr(f"gcr.image.remote.{module}.remote_at", Remote)


@pytest.fixture(params=[Folder, Remote], ids=["folder", "bucket"])
def kind(request: pytest.FixtureRequest) -> type[Remote]:
    """Returns the kind of the remote to which an image is pushed."""
    if request.param is Remote:
        request.getfixturevalue("as_bucket")
    found: type[Remote] = request.param
    return found


def pushed(store: Store, away: Path, name: str = "warm") -> Moved:
    return push(store, name, away.as_uri(), Transfer("push"))


def pulled(store: Store, away: Path, name: str = "warm") -> Moved:
    return pull(store.path, name, away.as_uri(), Transfer("pull"), store.cipher)


def contents(folder: Path) -> dict[str, bytes]:
    """But for what is not the same in all stores that have an image."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", MARK))
    paths = (path for path in files if path.suffix != PULLED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rewritten(path: Path, cipher: Cipher, change: Callable[[dict[str, object]], object]) -> None:
    """Rewrites a manifest, with a right digest, as an attacker with the key can."""
    file = f"images/{path.name}"
    document = json.loads(cipher.decrypt(file, path.read_bytes(), path))
    change(document["image"])
    document["digest"] = name_of(json.dumps(document["image"], sort_keys=True).encode()).hex()
    path.write_bytes(cipher.encrypt(file, json.dumps(document).encode()))


@pytest.mark.parametrize("field", ["source", "costs", "another"])
def test_a_field_that_no_image_has_is_damage(store: Store, field: str) -> None:
    write(store, "warm", [COMMON])
    path = store.images.folder / "warm.json"
    rewritten(path, store.cipher, lambda image: image.update({field: {}}))
    with pytest.raises(Damaged, match="field"):
        store.images.manifest("warm")


def test_what_was_pushed_comes_back_and_is_a_store_itself(store: Store, other: Store, away: Path) -> None:
    manifest = write(store, "warm", [COMMON, bytes(CHUNK_BYTES), OWN])
    sent = pushed(store, away)
    assert (sent.packs, sent.packs_moved, sent.bytes_moved) == (1, 1, manifest.packs[0].bytes)
    assert pulled(other, away) == sent
    for copy in (other, Store(away, store.cipher)):
        assert copy.images.manifest("warm") == manifest
        assert read(copy, "warm") == [COMMON, bytes(CHUNK_BYTES), OWN]
        check(copy, "warm")
    assert contents(store.path) == contents(other.path) == contents(away)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in away.rglob("*") if path.is_file()}
    assert modes == {0o600}


@pytest.mark.parametrize(
    ("here", "there"), [(CIPHERS["encrypted"], PLAIN), (PLAIN, CIPHERS["encrypted"]), (CIPHERS["encrypted"], OTHER)]
)
def test_between_stores_of_other_keys_nothing_moves(tmp_path: Path, away: Path, here: Cipher, there: Cipher) -> None:
    ours, theirs = Store(tmp_path / "store", here), Store(tmp_path / "other", there)
    write(ours, "warm", [COMMON])
    write(theirs, "theirs", [OWN])
    pushed(theirs, away, "theirs")
    before = contents(tmp_path)
    with pytest.raises(WrongKey):
        pushed(ours, away)
    with pytest.raises(WrongKey):
        pulled(ours, away, "theirs")
    assert contents(tmp_path) == before
    pushed(ours, tmp_path / "away too")
    before = contents(tmp_path)
    with pytest.raises(WrongKey):  # what is there is ours, what is here is not
        pull(theirs.path, "warm", (tmp_path / "away too").as_uri(), Transfer("pull"), here)
    assert contents(tmp_path) == before


def test_an_image_of_nothing_is_moved(store: Store, other: Store, away: Path) -> None:
    write(store, "warm", [])
    assert pushed(store, away) == pulled(other, away) == Moved(0, 0, 0, 0)
    assert read(other, "warm") == []


def test_only_what_is_missing_moves(store: Store, other: Store, away: Path) -> None:
    write(store, "one", [COMMON])
    pushed(store, away, "one")
    pulled(other, away, "one")
    write(store, "warm", [COMMON, OWN])
    sent, fetched = pushed(store, away), pulled(other, away)
    assert sent == fetched
    assert (sent.packs, sent.packs_moved) == (2, 1)
    assert sent.bytes_moved < len(COMMON) < sent.bytes
    assert read(other, "warm") == [COMMON, OWN]


def test_an_image_that_is_there_is_left_alone_and_another_of_its_name_refused(
    store: Store, other: Store, away: Path
) -> None:
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    pushed(store, away)
    before, ours = contents(away), contents(other.path)
    assert pushed(store, away).packs_moved == pulled(store, away).packs_moved == 0
    for act in (pushed, pulled):
        with pytest.raises(ImageExists):
            act(other, away)
    assert contents(away) == before
    assert contents(other.path).items() - ours.items() <= {("images/warm.json.new", b"")}
    assert read(other, "warm") == [OWN]


def test_what_is_not_there_is_refused_and_nothing_is_made(store: Store, away: Path, tmp_path: Path) -> None:
    write(store, "warm", [COMMON])
    with pytest.raises(NoSuchImage):
        pushed(store, away, "cold")
    assert not away.exists()
    with pytest.raises(StoreUnusable):
        pull(tmp_path / "new", "warm", away.as_uri(), Transfer("pull"))
    pushed(store, away)
    with pytest.raises(NoSuchImage):
        pull(tmp_path / "new", "cold", away.as_uri(), Transfer("pull"))
    assert not (tmp_path / "new").exists()


def test_a_half_uploaded_image_is_none_until_it_is_pushed_again(
    store: Store, other: Store, away: Path, kind: type[Remote]
) -> None:
    write(store, "one", [COMMON])
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    manifest = store.images.manifest("warm")
    (away / "images/warm.json").unlink()
    (away / "packs" / f"{manifest.packs[1].id}.pack").unlink()
    with pytest.raises(NoSuchImage):
        pulled(other, away)
    assert pushed(store, away).packs_moved == 1
    pulled(other, away)
    assert read(other, "warm") == [COMMON, OWN]


@pytest.mark.parametrize("change", ["cut short", "longer", "another footer", "gone"])
def test_a_pack_that_is_not_what_it_should_be_is_sent_again(
    store: Store, other: Store, away: Path, change: str, kind: type[Remote]
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    (pack,) = (away / "packs").iterdir()
    whole = pack.read_bytes()
    other_footer = whole[:-BLOCK] + bytes(BLOCK)
    pack.write_bytes(
        {"cut short": whole[:-BLOCK], "longer": whole + bytes(BLOCK), "another footer": other_footer, "gone": b""}[
            change
        ]
    )
    if change == "gone":
        pack.unlink()
    assert pushed(store, away).packs_moved == 1
    assert pack.read_bytes() == whole
    pulled(other, away)


def test_a_pack_of_another_image_is_not_replaced_by_who_pushes(tmp_path: Path, away: Path, kind: type[Remote]) -> None:
    precious, evil = with_one_id(tmp_path)
    pushed(precious, away)
    before = contents(away)
    with pytest.raises(Damaged, match="another pack"):
        pushed(evil, away, "evil")
    assert {name: data for name, data in contents(away).items() if name in before} == before


def test_a_pack_of_another_image_is_not_replaced_by_who_pulls(tmp_path: Path) -> None:
    precious, evil = with_one_id(tmp_path)
    before = contents(precious.path)
    with pytest.raises(Damaged, match="another pack"):
        pulled(precious, evil.path, "evil")
    assert precious.images.names() == ["warm"]
    assert {name: data for name, data in contents(precious.path).items() if name in before} == before
    check(precious, "warm")


def with_one_id(folder: Path) -> tuple[Store, Store]:
    """Two stores, each with an image of one pack; both packs have the same id, by forgery."""
    precious, evil = Store(folder / "precious"), Store(folder / "evil")
    (mine,), (theirs,) = write(precious, "warm", [COMMON]).packs, write(evil, "evil", [OWN]).packs
    (evil.packs.folder / f"{theirs.id}.pack").rename(evil.packs.folder / f"{mine.id}.pack")
    rewritten(evil.images.folder / "evil.json", PLAIN, lambda image: image["packs"][0].update(id=mine.id))  # type: ignore[index]
    check(evil, "evil")
    return precious, evil


def found_damaged(store: Store) -> Path:
    """The one pack of an image `warm`, of which a chunk is another one."""
    (pack,) = store.packs.folder.iterdir()
    flipped(pack, 2 * BLOCK, 3)
    with pytest.raises(Damaged):
        check(store, "warm")
    assert pack.with_suffix(".pack.bad").exists()
    return pack


def test_a_pack_that_was_found_damaged_is_pulled_again(store: Store, other: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    write(store, "two", [COMMON])
    pushed(store, away)
    found_damaged(store)
    store.remove(["warm"])
    assert pulled(store, away).packs_moved == 1
    for name in ("warm", "two"):
        check(store, name)
    assert write(store, "next", [COMMON]).costs.bytes_written == 0, "it is trusted again"


def test_what_is_damaged_of_an_image_that_is_here_is_pulled_again(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    before = contents(store.path)
    found_damaged(store)
    flipped(store.images.folder / "warm.chunks", 5, 3)
    (store.images.folder / "warm.hashes").unlink()
    assert pulled(store, away).packs_moved == 1
    assert contents(store.path) == before
    check(store, "warm")
    assert write(store, "next", [COMMON]).costs.bytes_written == 0, "it is trusted again"


def test_what_is_pulled_again_and_found_damaged_meanwhile_is_refused_once(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has opened the former pack finds the damage."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    path = found_damaged(store)
    real = Packs.take

    def late(self: Packs, finished: Path, pack: Pack) -> None:
        real(self, finished, pack)
        self.distrust(path)

    monkeypatch.setattr(Packs, "take", late)
    with pytest.raises(Damaged, match="meanwhile"):
        pulled(store, away)
    monkeypatch.undo()
    assert pulled(store, away).packs_moved == 1
    check(store, "warm")


def with_damaged_hashes(store: Store, away: Path) -> None:
    """An image `warm` that was pushed."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    flipped(store.images.folder / "warm.hashes", 5, 3)


def test_of_an_image_that_is_here_only_what_is_damaged_is_written(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_damaged_hashes(store, away)
    written = []
    monkeypatch.setattr("gcr.image.remote.pull.write_file", lambda path, _data: written.append(path.name))
    assert pulled(store, away).packs_moved == 0
    assert written == ["warm.hashes"]


def test_what_is_damaged_is_left_alone_while_others_have_its_name(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_damaged_hashes(store, away)
    before = contents(store.path)
    with store.held("warm"), pytest.raises(ImageExists, match="being written"):
        pulled(store, away)
    assert contents(store.path).items() - before.items() == {("images/warm.json.new", b"")}
    real = Store.held

    @contextmanager
    def another(self: Store, name: str) -> Iterator[Claim]:
        monkeypatch.undo()
        store.remove([name])
        write(store, name, [OWN])
        with real(self, name) as claim:
            yield claim

    monkeypatch.setattr(Store, "held", another)
    with pytest.raises(NoSuchImage, match="just now"):
        pulled(store, away)
    assert read(store, "warm") == [OWN]


def test_a_pack_that_was_found_damaged_in_a_folder_is_sent_again(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    folder = Store(away, store.cipher)
    found_damaged(folder)
    assert pushed(store, away).packs_moved == 1
    check(folder, "warm")
    assert write(folder, "next", [COMMON]).costs.bytes_written == 0


@pytest.mark.parametrize("act", [pushed, pulled])
def test_an_image_is_not_there_if_a_pack_of_it_is_found_damaged_meanwhile(
    store: Store, other: Store, away: Path, act: Callable[[Store, Path, str], Moved], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [COMMON])
    write(store, "two", [COMMON])
    pushed(store, away)
    pulled(other, away)
    if act is pulled:
        pushed(store, away, "two")
    target = Store(away, store.cipher) if act is pushed else other
    real = Claim.write_hashes if act is pulled else Folder.write

    def late(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        (pack,) = target.packs.folder.glob("*.pack")
        target.packs.distrust(pack)

    monkeypatch.setattr(Claim if act is pulled else Folder, real.__name__, late)
    with pytest.raises(Damaged, match="meanwhile"):
        act(store if act is pushed else other, away, "two")
    assert target.images.names() == ["warm"]


def failing_once(ending: str) -> tuple[list[str], Callable[[int], None]]:
    """Returns the names synced after a failure, and an os.fsync that fails once, for names with this ending."""
    real, synced = os.fsync, list[str]()

    def fsync(fd: int) -> None:
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
        if name.endswith(ending) and "failed" not in synced:
            synced.append("failed")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)
        synced.append(name)

    return synced, fsync


def test_what_failed_to_be_synced_is_pulled_again(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says so once; what it has in memory is right all the same."""
    manifest = write(store, "warm", [COMMON])
    pushed(store, away)
    _, fsync = failing_once(".part")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreUnusable, match="EIO"):
        pulled(other, away)
    assert list(other.packs.folder.iterdir()) == []
    assert pulled(other, away).bytes_moved >= manifest.packs[0].bytes - BLOCK


@pytest.mark.parametrize("there", [False, True], ids=["its own", "somebody's"])
def test_what_failed_to_be_synced_is_pushed_again(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """This holds also for a pack that another writer did not sync."""
    manifest = write(store, "warm", [COMMON])
    if there:
        pushed(store, away)
        (away / "images/warm.json").unlink()
    synced, fsync = failing_once(".pack" if there else ".pack.new")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreUnusable, match="EIO"):
        pushed(store, away)
    assert Store(away, store.cipher).images.names() == []
    assert pushed(store, away).bytes_moved == manifest.packs[0].bytes
    assert any(name.endswith(".pack.new") for name in synced[synced.index("failed") :])


def test_what_is_there_is_synced_before_it_counts(store: Store, away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    synced, fsync = failing_once("nothing")
    monkeypatch.setattr(os, "fsync", fsync)
    pushed(store, away)
    assert {Path(name).name for name in synced} >= {
        f"{store.images.manifest('warm').packs[0].id}.pack",
        "packs",
        "images",
    }


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from imaging import CIPHERS
from gcr.image.remote.push import push
from gcr.image.store.store import Store
from gcr.image.remote.transfer import Transfer
real = os.fsync

def fsync(fd):
    if "/away/packs/" in os.readlink(f"/proc/self/fd/{fd}"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(fd)

os.fsync = fsync
push(Store(Path(sys.argv[2]), CIPHERS[sys.argv[3]]), "warm", sys.argv[4], Transfer("push"))
"""


@pytest.mark.parametrize("name", CIPHERS)
def test_what_a_killed_push_has_left_in_a_folder_goes(tmp_path: Path, name: str) -> None:
    store, away = Store(tmp_path / "store", CIPHERS[name]), tmp_path / "away"
    write(store, "warm", [COMMON])
    words = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(store.path), name, away.as_uri()]
    assert subprocess.run(words, timeout=60, check=False).returncode == -signal.SIGKILL
    (left,) = (away / "packs").iterdir()
    assert left.name.endswith(".pack.new") and stat.S_IMODE(left.stat().st_mode) == 0o600
    assert pushed(store, away).packs_moved == 1
    assert not left.exists()
    assert contents(away) == contents(store.path)


def test_what_is_sent_is_what_was_looked_at(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another image may take its name meanwhile."""
    write(store, "warm", [COMMON])
    real = Images.stored_beside

    def stored_beside(self: Images, manifest: Manifest) -> Mapping[str, bytes]:
        found = real(self, manifest)
        monkeypatch.setattr(Images, "stored_beside", real)
        Store(store.path, store.cipher).remove(["warm"])
        write(Store(store.path, store.cipher), "warm", [OWN], created=9.0)
        return found

    monkeypatch.setattr(Images, "stored_beside", stored_beside)
    pushed(store, away)
    pulled(other, away)
    assert (read(other, "warm"), read(store, "warm")) == ([COMMON], [OWN])


def test_a_folder_that_becomes_an_encrypted_store_meanwhile_is_not_written_to(
    tmp_path: Path, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    write(store, "warm", [COMMON])
    real = Store.sweep

    def sweep(self: Store) -> None:
        real(self)
        monkeypatch.setattr(Store, "sweep", real)
        Store(self.path, CIPHERS["encrypted"])

    monkeypatch.setattr(Store, "sweep", sweep)
    with pytest.raises(WrongKey):
        pushed(store, away)
    assert contents(away) == {}


INDEXES = {
    "falling": [(b"n" * 32, 2, 4096), (b"n" * 32, 1, 4096)],
    "beyond the end": [(b"n" * 32, 1, 4096), (b"n" * 32, 1 << 31, 4096)],
    "of one that is larger than any": [(b"n" * 32, 1, 0xFFFFF000)],
    "of nothing": [(b"n" * 32, 1, 0), (b"n" * 32, 1, 8192)],
    "with a gap": [(b"n" * 32, 2, 4096)],
}


@pytest.mark.parametrize("what", INDEXES)
def test_nothing_is_fetched_by_an_index_that_no_pack_has(tmp_path: Path, what: str, small_parts: None) -> None:
    """Its seal may be right: it is forged."""
    evil, mine = Store(tmp_path / "evil"), Store(tmp_path / "mine")
    (pack,) = write(evil, "evil", [COMMON]).packs
    index, at = b"".join(PLACED.pack(*each) for each in INDEXES[what]), 3 * BLOCK
    facts = packs.FACTS.pack(packs.FOOTER_MAGIC, 1, len(INDEXES[what]), at) + name_of(index)
    header = packs.HEADER.pack(packs.HEADER_MAGIC, 1).ljust(BLOCK, b"\0")
    data = header.ljust(at, b"\0") + index.ljust(BLOCK, b"\0") + (facts + name_of(facts)).ljust(BLOCK, b"\0")
    (evil.packs.folder / f"{pack.id}.pack").write_bytes(data)
    forged = {"seal": name_of(facts).hex(), "bytes": len(data)}
    rewritten(evil.images.folder / "evil.json", PLAIN, lambda image: image["packs"][0].update(forged))  # type: ignore[index]
    transfer = Transfer("pull")
    with pytest.raises(Damaged, match="not what was pushed"):
        pull(mine.path, "evil", evil.path.as_uri(), transfer)
    assert transfer.moved == 2 * BLOCK, "index and footer"
    assert list(mine.packs.folder.iterdir()) == []


@pytest.mark.parametrize("size", [0, 100, BLOCK, 2 * BLOCK + 1])
def test_a_pack_of_a_size_that_none_has_is_refused(store: Store, other: Store, away: Path, size: int) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    rewritten(away / "images/warm.json", store.cipher, lambda image: image["packs"][0].update(bytes=size))  # type: ignore[index]
    with pytest.raises(Damaged, match="no pack has"):
        pulled(other, away)


def test_damage_here_is_not_pushed(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    (pack,) = store.packs.folder.iterdir()
    flipped(pack, 2 * BLOCK, 3)
    with pytest.raises(Damaged, match=pack.name):
        pushed(store, away)
    assert contents(away) == {}


PLACES = {
    "pack": (0, BLOCK, 300_000, -BLOCK - 40, -BLOCK, -BLOCK + 60, -1),
    "chunks": (0, -1),
    "hashes": (0, -1),
    "json": (0, 200, -1),
}


@pytest.mark.parametrize(("kind", "at"), [(kind, at) for kind, places in PLACES.items() for at in places])
def test_a_flipped_bit_is_found_and_nothing_appears(store: Store, other: Store, away: Path, kind: str, at: int) -> None:
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    (path,) = away.rglob(f"*.{kind}")
    flipped(path, at % path.stat().st_size, 1)
    with pytest.raises(Damaged, match=away.name.replace(" ", "%20")):
        pulled(other, away)
    assert other.images.names() == []
    assert not list(other.packs.folder.iterdir()) or kind != "pack"
    flipped(path, at % path.stat().st_size, 1)
    pulled(other, away)
    assert read(other, "warm") == [COMMON, OWN]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("share", [0, 0.5, 0.9999])
def test_an_object_that_is_cut_short_is_found(store: Store, other: Store, away: Path, kind: str, share: float) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    (path,) = away.rglob(f"*.{kind}")
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(Damaged):
        pulled(other, away)
    assert (other.images.names(), list(other.packs.folder.iterdir())) == ([], [])


@pytest.mark.parametrize("kind", ["json", "chunks", "hashes"])
def test_an_object_of_any_size_is_not_read_whole(store: Store, other: Store, away: Path, kind: str) -> None:
    """A sparse file that is larger than any memory stands for it."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    (path,) = away.rglob(f"*.{kind}")
    os.truncate(path, 1 << 43)
    with pytest.raises(Damaged, match="more than"):
        pulled(other, away)
    assert other.images.names() == []
    if kind != "json":
        pushed(store, away)
        pulled(other, away)


@pytest.mark.parametrize("cipher", ["plain"], indirect=True)
def test_what_a_newer_gcr_wrote_is_refused(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcr.image.crypto.cipher.PlainPack.version", 3)
    write(store, "warm", [COMMON])
    pushed(store, away)
    monkeypatch.undo()
    with pytest.raises(WrongImage, match="version 3; this gcr reads 2"):
        pulled(other, away)
    path = away / "images/warm.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(WrongImage, match="format 2"):
        pulled(other, away)
    assert files(other) == ["images/warm.json.new"]


@pytest.mark.parametrize("name", ["../../outside", "A" * 32, "0" * 31, "0" * 32 + "\n", 7])
def test_a_manifest_names_no_file_beside_the_packs(store: Store, other: Store, away: Path, name: object) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    (pack,) = (away / "packs").iterdir()
    (away / "outside.pack").write_bytes(pack.read_bytes())
    rewritten(away / "images/warm.json", store.cipher, lambda image: image["packs"][0].update(id=name))  # type: ignore[index]
    with pytest.raises(Damaged):
        pulled(other, away)
    assert files(other) == []
    assert not list(other.path.parent.glob("*outside*"))


def test_a_manifest_of_another_name_or_with_one_pack_twice_is_refused(store: Store, other: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    path = away / "images/warm.json"
    (away / "images/cold.json").write_bytes(path.read_bytes())
    with pytest.raises(Damaged, match="manifest of warm" if store.cipher is PLAIN else "not what was written under"):
        pulled(other, away, "cold")
    rewritten(path, store.cipher, lambda image: image.update(packs=image["packs"] * 2))  # type: ignore[operator]
    with pytest.raises(Damaged):
        pulled(other, away)


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many parts come, one after the other; then nothing more does."""
    real, came = Remote.part, []

    def part(self: Remote, path: str, at: int, size: int) -> memoryview:
        if len(came) == count:
            raise StoreUnusable("the line is dead")
        came.append(at)
        return real(self, path, at, size)

    monkeypatch.setattr(Remote, "part", part)
    monkeypatch.setattr(Transfer, "at_once", lambda *_: 1)


@pytest.mark.parametrize("count", range(11))
def test_a_pull_that_was_cut_short_is_taken_up_where_it_was(
    store: Store, other: Store, away: Path, count: int, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    """Footer, index, header, then eight chunks and a bit."""
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(count, patch)
        with pytest.raises(StoreUnusable, match="dead"):
            pulled(other, away)
    assert other.images.names() == []
    transfer = Transfer("pull")
    moved = pull(other.path, "warm", away.as_uri(), transfer, other.cipher)
    brought = max(0, count - 3)
    assert moved.bytes_moved <= moved.bytes - brought * CHUNK_BYTES + BLOCK
    assert transfer.total <= moved.bytes - brought * CHUNK_BYTES
    assert read(other, "warm") == [COMMON, OWN]
    check(other, "warm")
    assert contents(other.path) == contents(store.path)


def test_what_is_wrong_in_an_unfinished_pack_is_brought_again(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(10, patch)
        with pytest.raises(StoreUnusable):
            pulled(other, away)
    (unfinished,) = other.packs.folder.iterdir()
    for at in (0, BLOCK + 1, 3 * CHUNK_BYTES):
        flipped(unfinished, at, 0)
    pulled(other, away)
    check(other, "warm")


def test_a_pull_that_was_cut_short_goes_with_the_next_clean_up(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    interrupted_after(5, monkeypatch)
    with pytest.raises(StoreUnusable):
        pulled(other, away)
    assert other.clean() > CHUNK_BYTES
    assert files(other) == []


@pytest.mark.parametrize(("hours", "stays"), [(0, True), (23, True), (25, False), (-1, True), (-25, False)])
def test_what_a_pull_has_left_waits_a_day_for_the_next(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None, hours: int, stays: bool
) -> None:
    """Images that are written meanwhile do not take it away; a clock that was wrong does not keep it for ever."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(5, patch)
        with pytest.raises(StoreUnusable):
            pulled(other, away)
    (unfinished,) = other.packs.folder.iterdir()
    at = time.time() - hours * 3600
    os.utime(unfinished, (at, at))
    write(other, "another", [OWN])
    assert unfinished.exists() == stays
    assert pulled(other, away).bytes_moved < len(COMMON) or not stays
    check(other, "warm")


def test_a_pull_that_brings_nothing_makes_it_wait_another_day(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    for count in (5, 0):
        with monkeypatch.context() as patch:
            interrupted_after(count, patch)
            with pytest.raises(StoreUnusable):
                pulled(other, away)
        (unfinished,) = other.packs.folder.iterdir()
        if count:
            os.utime(unfinished, (0, 0))
    other.sweep()
    assert unfinished.exists()


def test_nothing_is_cleaned_up_while_an_image_moves(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cleaned up here nor, in a folder, there."""
    write(store, "warm", [COMMON])
    real, busy = Folder.has, []

    def has(self: Folder, pack: packs.Pack) -> bool:
        for path in (store.path, away):
            with pytest.raises(StoreBusy):
                Store(path, store.cipher).clean()
            busy.append(path)
        return real(self, pack)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "has", has)
        pushed(store, away)
    real_part = Remote.part

    def part(self: Remote, path: str, at: int, size: int) -> memoryview:
        with pytest.raises(StoreBusy):
            other.clean()
        busy.append(other.path)
        return real_part(self, path, at, size)

    monkeypatch.setattr(Remote, "part", part)
    pulled(other, away)
    assert {*busy} == {store.path, away, other.path}


def test_two_pulls_bring_what_they_share_once(store: Store, other: Store, away: Path, small_parts: None) -> None:
    for name in ("one", "two"):
        write(store, name, [COMMON, OWN])
        pushed(store, away, name)
    start, moved = Barrier(2), []

    def bring(name: str) -> None:
        start.wait()
        moved.append(pulled(other, away, name).bytes_moved)

    threads = [Thread(target=bring, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    size = store.images.manifest("one").packs[0].bytes
    assert sorted(moved) == [0, size]
    for name in ("one", "two"):
        assert read(other, name) == [COMMON, OWN]


def test_of_two_images_under_one_name_the_first_to_claim_it_arrives(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, as_bucket: None
) -> None:
    """The first dies before its manifest is there; the second does not touch what it has left."""
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    with monkeypatch.context() as patch:
        for name in ("write", "write_pack"):
            patch.setattr(Remote, name, lambda *_: None)
        patch.setattr(Remote, "has", lambda *_: True)
        patch.setattr(Remote, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pushed(store, away)
    claimed = contents(away)
    assert [*claimed] == ["images/warm.json.new"]
    with pytest.raises(ImageExists) as caught:
        pushed(other, away)
    assert "images/warm.json.new" in caught.value.hint
    assert contents(away)["images/warm.json.new"] == claimed["images/warm.json.new"]
    assert not {"images/warm.chunks", "images/warm.hashes"} & contents(away).keys()
    pushed(store, away)
    assert set(contents(away)) >= set(files(store))
    assert "images/warm.json.new" not in contents(away)


def test_an_image_that_arrives_meanwhile_is_not_touched(
    store: Store, other: Store, away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_bucket: None
) -> None:
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    real = Remote.has

    def has(self: Remote, pack: packs.Pack) -> bool:
        monkeypatch.setattr(Remote, "has", real)
        pushed(store, away)
        return real(self, pack)

    monkeypatch.setattr(Remote, "has", has)
    with pytest.raises(ImageExists):
        pushed(other, away)
    assert "images/warm.json.new" not in contents(away)
    third = Store(tmp_path / "third", store.cipher)
    pulled(third, away)
    assert read(third, "warm") == [COMMON]


@pytest.mark.parametrize("there", [False, True], ids=["new", "pushed again"])
def test_nobody_else_writes_an_image_of_that_name_into_the_folder(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Neither a job of that store nor another push does, whether the name is taken or not; they leave nothing."""
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    if there:
        pushed(store, away)
    real, refused = Folder.has, []

    def has(self: Folder, pack: packs.Pack) -> bool:
        if there:
            Store(away, store.cipher).remove(["warm"])
        for act in (lambda: write(Store(away, store.cipher), "warm", [OWN]), lambda: pushed(other, away)):
            with pytest.raises(ImageExists, match="just now"):
                act()
            refused.append(act)
        return real(self, pack)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "has", has)
        pushed(store, away)
    assert len(refused) >= 2
    folder = Store(away, store.cipher)
    assert read(folder, "warm") == [COMMON]
    check(folder, "warm")
    assert not (away / "images/warm.json.new").exists()


def test_who_claims_the_name_before_a_push_has_ended_keeps_it(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pushed image is removed at once, and another begun."""
    write(store, "warm", [COMMON])
    real, begun = Folder.publish, []

    def publish(self: Folder, name: str, manifest: bytes) -> bool:
        done = real(self, name, manifest)
        folder = Store(away, store.cipher)
        folder.remove(["warm"])
        begun.append(ImageWriter(folder, "warm").__enter__())
        return done

    monkeypatch.setattr(Folder, "publish", publish)
    pushed(store, away)
    (writer,) = begun
    writer.add([(mapped(OWN), {})])
    writer.commit(described("warm", [len(OWN)]))
    writer.__exit__()
    assert read(Store(away, store.cipher), "warm") == [OWN]


def test_an_image_that_goes_while_it_is_pushed_again_is_there_at_the_end(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Remote]
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    real = kind.has

    def has(self: Remote, pack: packs.Pack) -> bool:
        (away / "images/warm.json").unlink(missing_ok=True)
        return real(self, pack)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "has", has)
    pushed(store, away)
    pulled(other, away)
    assert read(other, "warm") == [COMMON]


def test_what_can_neither_be_read_nor_made_is_no_push(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    Store(away, store.cipher)
    (away / "images/warm.json").symlink_to("nowhere")
    with pytest.raises(Damaged, match=r"warm\.json: it is no regular file"):
        pushed(store, away)


def test_another_image_that_takes_the_name_of_one_that_is_pushed_again_is_not_touched(
    store: Store, other: Store, away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_bucket: None
) -> None:
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    pushed(store, away)
    real = Remote.has

    def has(self: Remote, pack: packs.Pack) -> bool:
        monkeypatch.setattr(Remote, "has", real)
        for suffix in ("json", "chunks", "hashes"):
            (away / f"images/warm.{suffix}").unlink()
        pushed(other, away)
        return real(self, pack)

    monkeypatch.setattr(Remote, "has", has)
    with pytest.raises(ImageExists):
        pushed(store, away)
    third = Store(tmp_path / "third", store.cipher)
    pulled(third, away)
    assert read(third, "warm") == [OWN]


def test_what_is_not_kept_as_it_was_sent_is_no_push(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Remote]
) -> None:
    write(store, "warm", [COMMON])

    def cut_short(self: Remote, pack: packs.Pack, *_rest: object) -> None:
        (away / "packs").mkdir(exist_ok=True)
        (away / f"packs/{pack.id}.pack").write_bytes(bytes(2 * BLOCK))

    for kind in (Remote, Folder):
        monkeypatch.setattr(kind, "write_pack", cut_short)
    with pytest.raises(StoreUnusable, match="not what was sent"):
        pushed(store, away)
    assert not (away / "images/warm.json").exists()


@pytest.mark.parametrize("act", [pushed, pulled])
def test_past_its_time_it_ends_and_nothing_is_there(
    store: Store, other: Store, away: Path, act: Callable[[Store, Path], Moved], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [COMMON])
    if act is pulled:
        pushed(store, away)
    monkeypatch.setitem(globals(), "Transfer", partial(Transfer, timeout=1e-9))
    with pytest.raises(DeadlinePassed):
        act(store if act is pushed else other, away)
    assert not list(away.glob("images/*.json")) or act is pulled
    assert other.images.names() == []


def test_progress_is_told_up_to_the_last_byte(store: Store, away: Path) -> None:
    manifest = write(store, "warm", [COMMON])
    told: list[dict[str, float]] = []
    push(store, "warm", away.as_uri(), Transfer("push", tell=lambda record: told.append({**record})))
    size = manifest.packs[0].bytes
    assert (told[-1]["phase"], told[-1]["bytes"], told[-1]["total_bytes"]) == ("push", size, size)


BAD = ["warm", "s3://", "file://host/folder", "ftp://a/b", "http://a/b", "memory:///", "s3://[", ""]
SECRET = ["s3://key:secret@bucket/p", "s3://secret@bucket", "az://a/b?sig=secret", "file:///a#secret"]


@pytest.mark.parametrize("url", BAD + SECRET)
def test_what_is_no_url_of_a_store_is_refused_and_no_secret_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        remote_at(url)
    assert "secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("name", ["../warm", "Warm", ""])
def test_what_is_no_name_of_an_image_is_refused(store: Store, other: Store, away: Path, name: str) -> None:
    away.mkdir()
    for act in (pushed, pulled):
        with pytest.raises(UsageError):
            act(store, away, name)


def test_without_the_library_it_is_said_how_to_get_it(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [COMMON])
    monkeypatch.setitem(sys.modules, "obstore", None)
    for act in (pushed, pulled):
        with pytest.raises(LibraryMissing) as caught:
            act(store, away)
        assert "[remote]" in caught.value.hint
    assert not away.exists()


def test_what_the_file_system_says_is_a_refusal(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    away.write_text("a file")
    for act in (pushed, pulled):
        with pytest.raises(StoreUnusable, match=re.escape(away.as_uri())):
            act(store, away)


def test_no_object_has_more_parts_than_s3_takes() -> None:
    for size in (1, PART, 10_000 * PART, 10_000 * PART + 1, 5 << 40):
        assert part_bytes(size) >= PART
        assert -(-size // part_bytes(size)) <= 10_000


def test_a_folder_that_others_may_enter_is_refused_with_one_that_may_be_made(store: Store, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    write(store, "warm", [COMMON])
    with pytest.raises(StoreUnusable, match="belongs to one user") as caught:
        push(store, "warm", shared.as_uri(), Transfer("push"))
    below = caught.value.hint.rpartition(" ")[2]
    assert below.startswith(f"{shared.as_uri()}/")
    push(store, "warm", below, Transfer("push"))
    assert not [*shared.glob("*.json")]


@pytest.mark.parametrize(("allowed", "told"), [("", "AWS_ALLOW_HTTP=true"), ("true", "credentials")])
def test_a_server_without_tls_must_be_allowed(monkeypatch: pytest.MonkeyPatch, allowed: str, told: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", allowed)
    remote = Remote("s3://bucket/prefix")
    with pytest.raises(StoreUnusable) as caught, remote._answering():
        raise ValueError("no")
    assert told in caught.value.hint
