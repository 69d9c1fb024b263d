"""Where the store of this user is."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gcr import config
from gcr.errors import NoSuchImage, StoreUnusable, UsageError
from gcr.runtime import data_dir, expanded

if TYPE_CHECKING:
    from gcr.image.crypto.key import KeySource
    from gcr.image.store.store import Store


def store_path(chosen: str | None = None) -> Path:
    """`--store`, else the setting, else in the user's data directory; absolute.

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
    """Somebody has said where it is: then there should be one."""
    return bool(chosen or config.load().store)


def is_none(path: Path) -> bool:
    """Nothing is there, or an empty folder: nobody has written to it, or the disk is missing. Raises OSError."""
    try:
        return not any(True for _ in path.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:  # Store says so
        return False


def opened(path: Path, key: "KeySource", pulse: Callable[[], object]) -> "Store | None":
    """None: there is none, and who only looks makes none. `pulse`: see Store.

    Raises UnsafeRuntime, KeyUnusable, WrongKey, OSError.
    """
    from gcr.image.crypto.ciphers import cipher_of  # takes 30 ms, which a checkpoint without an image need not wait for
    from gcr.image.store.store import Store

    return None if is_none(path) else Store(path, cipher_of(key.key()), pulse)


def without_store(error: NoSuchImage, path: Path) -> NoSuchImage:
    """Why it is not there."""
    hint = "is its disk there? --store names another folder"
    return NoSuchImage(f"{error.message}: there is no store in {path}", hint=hint)


def silent(store: object, patience: float) -> StoreUnusable:
    """It was asked so many seconds ago."""
    text = f"the store {store} has not answered for {patience:g} s: its disk or its server hangs, or is very slow"
    return StoreUnusable(text, hint="another folder as --store, or a longer setting store_s")
