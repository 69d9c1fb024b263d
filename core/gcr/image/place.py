"""Where the store of this user is."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gcr import config
from gcr.errors import StoreUnusable
from gcr.runtime import data_dir

if TYPE_CHECKING:
    from gcr.image.key import KeySource
    from gcr.image.store import Store


def store_path(chosen: str | None = None) -> Path:
    """`--store`, else the setting, else in the user's data directory; absolute. Raises UsageError, UnsafeRuntime."""
    found = chosen or config.load().store
    return Path(found).expanduser().absolute() if found else data_dir() / "store"


def opened(path: Path, key: "KeySource", pulse: Callable[[], object]) -> "Store | None":
    """None: nobody has written to it yet. `pulse`: see Store. Raises UnsafeRuntime, KeyUnusable, WrongKey, OSError."""
    from gcr.image.cipher import cipher_of  # takes 30 ms, which a checkpoint without an image need not wait for
    from gcr.image.store import Store

    try:
        path.lstat()  # of what is there and no folder Store says so
    except FileNotFoundError:
        return None
    return Store(path, cipher_of(key.key()), pulse)


def silent(store: object, patience: float) -> StoreUnusable:
    """It was asked so many seconds ago."""
    text = f"the store {store} has not answered for {patience:g} s: its disk or its server hangs, or is very slow"
    return StoreUnusable(text, hint="another folder as --store, or a longer setting store_s")
