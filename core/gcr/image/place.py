"""Where the store of this user is."""

from pathlib import Path
from typing import TYPE_CHECKING

from gcr import config
from gcr.runtime import data_dir

if TYPE_CHECKING:
    from gcr.image.key import KeySource
    from gcr.image.store import Store


def store_path(chosen: str | None = None) -> Path:
    """`--store`, else the setting, else in the user's data directory; absolute. Raises UsageError, UnsafeRuntime."""
    found = chosen or config.load().store
    return Path(found).expanduser().absolute() if found else data_dir() / "store"


def opened(chosen: str | None, key: "KeySource") -> "Store | None":
    """None: nobody has written to it yet. Raises UnsafeRuntime, UsageError, KeyUnusable, WrongKey, LibraryMissing."""
    from gcr.image.cipher import cipher_of  # takes 30 ms, which a checkpoint without an image need not wait for
    from gcr.image.store import Store

    path = store_path(chosen)
    return Store(path, cipher_of(key.key())) if path.is_dir() else None
