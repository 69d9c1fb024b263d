"""Opens the store in a folder: makes what is missing, so that it outlives a crash, and marks the folder."""

import fcntl
from contextlib import suppress
from pathlib import Path

from gcr.image.disk.durable import sync
from gcr.image.disk.failing import usable
from gcr.image.disk.locking import LOCK, locked
from gcr.image.store.cleaning import Cleaner
from gcr.image.store.mark import MARK, NEW_MARK, Mark
from gcr.imageerrors import StoreUnusable
from gcr.listing import listed
from gcr.runtime import check_own_directory

MARK_SECONDS = 5.0  # that other processes may take to leave a store that is to be encrypted


def open_store(mark: Mark, cleaner: Cleaner) -> None:
    """Makes what is missing of a store, and marks it. Raises StoreUnusable, UnsafeRuntime, WrongKey, Damaged."""
    store = mark.store
    missing = [folder for folder in (store, *store.parents) if not folder.exists()]
    _make(store, store)
    with usable(store):
        _mark(mark, cleaner)
    for folder in (cleaner.packs.folder, cleaner.images.folder):
        missing += [] if folder.exists() else [folder]
        _make(store, folder)
    with usable(store):
        for folder in missing:
            sync(folder.parent)


def _make(store: Path, folder: Path) -> None:
    with usable(store), suppress(FileExistsError):  # the next check tells whether it is a folder of the user's
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    check_own_directory(folder)


def _mark(mark: Mark, cleaner: Cleaner) -> None:
    """Raises StoreUnusable for a folder with files of others: gcr cleans up only folders of its own."""
    found = mark.found()
    if found is None and any(entry.name not in (MARK, NEW_MARK, LOCK) for entry in listed(mark.store)):
        raise StoreUnusable(f"{mark.store} is no store of gcr's, and not empty", hint="another folder as --store")
    if found is None and not mark.cipher.mark:
        mark.write_plain()
    elif not found and mark.cipher.mark:
        _encrypt(mark, cleaner)
    mark.check(cleaner.images)


def _encrypt(mark: Mark, cleaner: Cleaner) -> None:
    """Makes a store without an image one of the cipher. Raises StoreBusy."""
    with locked(mark.store, fcntl.LOCK_EX, MARK_SECONDS):
        if (found := mark.found()) is not None:
            for folder in (cleaner.packs.folder, cleaner.images.folder):  # the marker may have died before
                _make(mark.store, folder)
            if found or cleaner.images.names():
                return
            cleaner.clean(())
        mark.write_encrypted()
