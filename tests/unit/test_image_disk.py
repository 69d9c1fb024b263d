"""A disk that is full, that fails, or that takes and gives less at a time than it was asked for."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from imaging import CIPHERS, bytes_of, check, read, write

from gcr.hashing import CHUNK_BYTES
from gcr.image.disk.durable import NO_LINKS
from gcr.image.files.names import PROBE
from gcr.image.remote.pull import pull
from gcr.image.remote.push import push
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, StoreUnusable

pytestmark = pytest.mark.on_disk

OLD = [bytes_of(1, 9000), bytes_of(2, 5000)]
NEW = [bytes_of(1, 9000), bytes_of(3, 2 * CHUNK_BYTES + 100), bytes(100)]
WRITING = ("pwritev", "write", "fsync", "rename", "link", "unlink", "open", "ftruncate")
READING = ("preadv", "open")


@pytest.fixture(params=CIPHERS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    made = Store(tmp_path / "store", CIPHERS[request.param])
    write(made, "old", OLD)
    return made


@contextmanager
def failing(call: str, number: int, error: int) -> Iterator[list[int]]:
    """The call of this number, from 0, fails; the list has an entry once it has."""
    real, numbers, failed = getattr(os, call), count(), []

    def maybe(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == number:
            failed.append(number)
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    with patch.object(os, call, maybe):
        yield failed


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", WRITING)
def test_whichever_call_fails_old_images_are_whole_and_the_new_one_too_or_not_there(
    store: Store, call: str, error: int
) -> None:
    for number in count():
        with failing(call, number, error) as failed:
            try:
                write(store, "new", NEW)
            except StoreUnusable as refused:
                assert errno.errorcode[error] in refused.message
            else:
                assert not failed or call in ("open", "unlink")  # O_DIRECT is done without, and so is what is needless
        assert read(store, "old") == OLD
        for name in store.images.names():
            check(store, name)
        if not failed:
            break
        if "new" in store.images.names():
            assert read(store, "new") == NEW
            store.remove(["new"])
    assert read(store, "new") == NEW
    assert number > 0, "it never failed"


def test_an_image_whose_last_sync_fails_is_not_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller was told so and removes nothing any more."""
    real = os.fsync

    def fsync(fd: int) -> None:
        if (store.images.folder / "new.json").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreUnusable, match="EIO"):
        write(store, "new", NEW)
    assert store.images.names() == ["old"]


def test_an_image_that_can_be_neither_made_durable_nor_removed_is_said_to_be_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = os.link, []

    def link(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        if not str(arguments[1]).endswith(PROBE):
            broken.append(True)

    def fails_once_broken(act: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if broken:
                raise OSError(errno.EIO, "broken")
            return act(*arguments, **options)

        return call

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fails_once_broken(os.fsync))
    monkeypatch.setattr(os, "unlink", fails_once_broken(os.unlink))
    with pytest.raises(StoreUnusable, match="image new is there all the same") as caught:
        write(store, "new", NEW)
    monkeypatch.undo()
    assert caught.value.hint == f"gcr rm new --store {store.path}"
    check(store, "new")
    assert read(store, "new") == NEW


@pytest.mark.parametrize("error", NO_LINKS, ids=errno.errorcode.get)
def test_a_file_system_without_hard_links_is_refused_before_anything_is_written(store: Store, error: int) -> None:
    url, before = elsewhere(store), sorted(store.packs.folder.iterdir())
    with patch.object(os, "link", side_effect=OSError(error, os.strerror(error))):
        with pytest.raises(StoreUnusable, match="has no hard links"), ImageWriter(store, "new"):
            raise AssertionError("it was opened")
        with pytest.raises(StoreUnusable, match="has no hard links"):
            pull(store.path, "away", url, Transfer("pull"), store.cipher)
    assert sorted(store.packs.folder.iterdir()) == before
    write(store, "new", NEW)
    check(store, "new")


def elsewhere(store: Store) -> str:
    """A folder with an image `away` that the store has not."""
    other, url = Store(store.path.parent / "other", store.cipher), (store.path.parent / "away").as_uri()
    write(other, "away", NEW)
    push(other, "away", url, Transfer("push"))
    return url


def test_what_a_killed_probe_left_goes(store: Store) -> None:
    """Beside an image that is there, and one that is not."""
    left = [store.images.folder / f"{name}{PROBE}" for name in ("old", "new")]
    for path in left:
        path.touch()
    store.sweep()
    assert not any(path.exists() for path in left)
    left[1].touch()
    write(store, "new", NEW)
    assert not left[1].exists()


@pytest.mark.parametrize("call", READING)
def test_a_disk_that_cannot_be_read_gives_nothing(store: Store, call: str) -> None:
    for number in count():
        with failing(call, number, errno.EIO) as failed:
            try:
                found = read(store, "old")
            except (StoreUnusable, Damaged):
                assert failed
            else:
                assert found == OLD
        if not failed:
            break
    assert number > 0


@pytest.mark.parametrize("folder", ["packs", "images"])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(store: Store, folder: str) -> None:
    """Files that are not known to be needed would be removed."""
    write(store, "other", NEW)
    for step in (store.clean, lambda: store.remove(["other"]), store.sweep, store.images.names):
        with unlisted(store.path / folder), suppress(StoreUnusable, OSError):
            step()
    assert read(store, "old") == OLD
    with unlisted(store.path / folder), pytest.raises((StoreUnusable, OSError)):
        store.clean()


@contextmanager
def unlisted(folder: Path) -> Iterator[None]:
    """Whichever call a version of Python lists a folder with."""
    with ExitStack() as stack:
        for call in ("listdir", "scandir"):
            stack.enter_context(patch.object(os, call, _refusing(getattr(os, call), folder)))
        yield


def _refusing(real: Callable[[Any], Any], folder: Path) -> Callable[[Any], Any]:
    def maybe(path: Any) -> Any:
        if str(path) == str(folder):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    return maybe


@contextmanager
def in_small_pieces() -> Iterator[None]:
    """Whole blocks at most, and of several pieces the first alone."""
    real_write, real_read = os.pwritev, os.preadv

    def some(buffers: Any) -> list[memoryview]:
        return [memoryview(buffers[0])[:4096]]

    with (
        patch.object(os, "pwritev", lambda fd, buffers, at: real_write(fd, some(buffers), at)),
        patch.object(os, "preadv", lambda fd, buffers, at: real_read(fd, some(buffers), at)),
    ):
        yield


def test_a_disk_that_takes_and_gives_less_than_asked(store: Store) -> None:
    with in_small_pieces():
        write(store, "new", NEW)
        assert read(store, "new") == NEW
    check(store, "new")
    assert read(store, "new") == NEW


def test_an_image_on_a_disk_that_cannot_be_written_to_can_be_read(tmp_path: Path) -> None:
    write(Store(tmp_path / "store"), "warm", OLD)
    real = os.open

    def read_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more, **options)

    with patch.object(os, "open", read_only):
        store = Store(tmp_path / "store")
        check(store, "warm")
        assert read(store, "warm") == OLD
        with pytest.raises(StoreUnusable, match="EROFS"), ImageWriter(store, "new"):
            pass
        with pytest.raises(OSError, match="Read-only"):
            store.remove(["warm"])
    assert store.images.names() == ["warm"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_store_that_cannot_be_made_is_unusable(tmp_path: Path, number: int) -> None:
    """The error names its disk, not its owner or mode."""
    failing = OSError(number, os.strerror(number))
    with patch.object(Path, "mkdir", side_effect=failing), pytest.raises(StoreUnusable, match=errno.errorcode[number]):
        Store(tmp_path / "store")
