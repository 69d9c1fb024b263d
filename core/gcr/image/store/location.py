"""The location of this user's store."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gcr import config
from gcr.errors import UsageError
from gcr.imageerrors import NoSuchImage, StoreUnusable
from gcr.runtime import data_dir, expanded

if TYPE_CHECKING:
    from gcr.image.crypto.key import KeySource
    from gcr.image.store.store import Store


def store_path(chosen: str | None = None) -> Path:
    """Returns the absolute path: `--store`, else the setting, else `store` in the user's data directory.

    Raises UsageError, UnsafeRuntime, NoHome.
    """
    found = chosen or config.load().store
    return expanded(folder_of(found)).absolute() if found else data_dir() / "store"


def store_of(image: str | None, chosen: str | None) -> str | None:
    """Returns the store of a request: the whole path where it has an image, else `chosen`. Raises as `store_path`."""
    return str(store_path(chosen)) if image else chosen


def folder_of(store: str) -> str:
    """Returns `store` if it names a folder. Raises UsageError for a URL, without its text, which may hold a password.

    As a path `s3://b/i` would be the folder `s3:/b/i` of the current one.
    """
    scheme, is_url, _rest = store.partition("://")
    if not is_url:
        return store
    text = f"the store is given as a URL ({scheme}://...), and images are written to and read from a folder"
    elsewhere = f"name a folder, and copy images with gcr push NAME {scheme}://... and gcr pull NAME {scheme}://..."
    raise UsageError(text, hint="name the folder by its path" if scheme == "file" else elsewhere)


def is_named(chosen: str | None) -> bool:
    """Returns whether the option or the setting names a store: it should exist then."""
    return bool(chosen or config.load().store)


def is_none(path: Path) -> bool:
    """Returns whether nothing or an empty folder is there: no image was written, or the disk is missing.

    Raises OSError.
    """
    try:
        return not any(True for _ in path.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:  # Store refuses it
        return False


def opened(path: Path, key: "KeySource", pulse: Callable[[], object]) -> "Store | None":
    """Opens the store to look at it; returns None, and makes none, if there is none. `pulse`: see Store.

    Raises UnsafeRuntime, KeyUnusable, WrongKey, OSError.
    """
    from gcr.image.crypto.ciphers import cipher_of  # takes 30 ms, which a checkpoint without an image saves
    from gcr.image.store.store import Store

    return None if is_none(path) else Store(path, cipher_of(key.key()), pulse)


def without_store(error: NoSuchImage, path: Path) -> NoSuchImage:
    """Returns the error for an image that is missing because its store is."""
    hint = "is its disk there? --store names another folder"
    return NoSuchImage(f"{error.message}: there is no store in {path}", hint=hint)


def silent(store: object, patience: float) -> StoreUnusable:
    """Returns the error for a store that has not answered for so many seconds."""
    text = f"the store {store} has not answered for {patience:g} s: its disk or its server hangs, or is very slow"
    return StoreUnusable(text, hint="another folder as --store, or a longer setting store_s")
