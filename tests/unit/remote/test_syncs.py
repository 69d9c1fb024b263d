"""What was not synced does not count: what failed, or was killed, is pushed and pulled again."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from imaging import CIPHERS, read, write
from remotes import COMMON, OWN, contents, pulled, pushed

from gcr.image.chunks.entry import BLOCK
from gcr.image.files.manifest import Manifest
from gcr.image.store.images import Images
from gcr.image.store.store import Store
from gcr.imageerrors import StoreUnusable, WrongKey


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


@pytest.mark.parametrize("there", [False, True], ids=["its own", "another's"])
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
    words = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(store.path), name, away.as_uri()]
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
