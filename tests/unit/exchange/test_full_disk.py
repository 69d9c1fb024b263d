"""A pull that meets a full disk says how much is missing, leaves no image, and goes on once there is room."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from imaging import bytes_of, check, read, write
from little_disk import enlarge, little
from nodes import pulled as from_nodes
from nodes import running
from remotes import pulled as from_elsewhere
from remotes import pushed

from gcr.errors import NoRoom
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.crypto.cipher import Cipher
from gcr.image.exchange.notes import Noted, Notes
from gcr.image.pack.format import ARRIVING
from gcr.image.remote.push import Moved
from gcr.image.store.claim import Claim
from gcr.image.store.store import Store

MIB = 1 << 20
LARGE = [bytes_of(number, MIB) for number in range(6)]
DISK = 3 * MIB

Pull = Callable[[Store], Moved]


@contextmanager
def by_exchange(store: Store, _away: Path) -> Iterator[Pull]:
    with running(store.path) as node:
        yield lambda other: from_nodes(other, [node])


@contextmanager
def by_bucket(store: Store, away: Path) -> Iterator[Pull]:
    pushed(store, away)
    yield lambda other: from_elsewhere(other, away)


@pytest.fixture(params=[by_exchange, by_bucket])
def pull(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pull]:
    """Pulls the image `warm` into a store, in small requests."""
    monkeypatch.setattr("gcr.image.remote.pull.PART", CHUNK_BYTES)
    write(store, "warm", LARGE)
    with request.param(store, tmp_path / "away") as by:
        yield by


@pytest.fixture
def small(tmp_path: Path, cipher: Cipher) -> Iterator[Store]:
    with ExitStack() as stack:
        stack.enter_context(little(tmp_path / "small", DISK))
        yield Store(tmp_path / "small", cipher)


def test_what_came_stays_and_the_same_again_brings_the_rest(pull: Pull, small: Store) -> None:
    with pytest.raises(NoRoom, match="is full") as caught:
        pull(small)
    missing = caught.value.missing
    assert missing is not None and 2 * MIB < missing <= 6 * MIB
    assert small.images.names() == []
    assert [path.name.endswith(ARRIVING) for path in small.packs.folder.iterdir()] == [True]
    assert [path for path in small.images.folder.iterdir() if path.suffix in (".json", ".chunks", ".hashes")] == []
    enlarge(small.path, 16 * MIB)
    moved = pull(small)
    assert moved.bytes_moved <= moved.bytes - MIB
    assert read(small, "warm") == LARGE
    check(small, "warm")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write_references", "publish"])
def test_no_room_for_the_last_files_leaves_no_image(
    pull: Pull, other: Store, step: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_more: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, pytest.raises(NoRoom) as caught:
        patch.setattr(Claim, step, full)
        pull(other)
    assert caught.value.missing is None
    assert other.images.names() == []
    assert pull(other).bytes_moved == 0
    assert read(other, "warm") == LARGE


def test_a_store_that_has_no_room_to_be_made_is_told_as_such(pull: Pull, tmp_path: Path, cipher: Cipher) -> None:
    with little(tmp_path / "tiny", 4096):
        with pytest.raises(OSError, match="No space"):
            (tmp_path / "tiny" / "other").write_bytes(bytes(1 << 16))
        with pytest.raises(NoRoom, match="is full"):
            pull(cast("Store", SimpleNamespace(path=tmp_path / "tiny" / "store", cipher=cipher)))


def test_another_error_of_the_disk_is_no_lack_of_room(
    pull: Pull, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_given: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Claim, "write_references", broken)
    with pytest.raises(Exception, match="EIO") as caught:
        pull(other)
    assert not isinstance(caught.value, NoRoom)


def test_a_note_that_is_cut_short_ends_the_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later note behind half a note would be read as other runs, which no pull has compared."""
    notes = Notes(tmp_path / "p.runs", bytes(32))
    notes.add(0, 4096)
    real = os.write
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        notes.add(4096, 4096)
    noted = Noted(tmp_path / "p.runs")
    assert noted.runs(0, 10) == [(0, 4096)]
    noted.close()
    notes.close()
