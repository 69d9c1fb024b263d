"""Where the store of this user is."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from gcr import config
from gcr.errors import StoreUnusable
from gcr.runtime import data_dir

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gcr.image.key import KeySource
    from gcr.image.store import Store

T = TypeVar("T")


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


def answered(path: Path, ask: Callable[[], T]) -> T:
    """What was asked of the store in this folder, which may hang. Raises what `ask` raises.

    StoreUnusable where the setting `store_s` has passed; the thread that asks is left to itself.
    """
    from concurrent.futures import Future, wait

    answer: Future[T] = Future()
    Thread(target=_ask, args=(ask, answer), name="gcr-store", daemon=True).start()
    patience = config.load().store_s
    if not wait([answer], patience).done:
        raise silent(path, patience)
    return answer.result()


def _ask(ask: Callable[[], T], answer: "Future[T]") -> None:
    try:
        answer.set_result(ask())
    except Exception as error:  # whoever waits raises it
        answer.set_exception(error)


def silent(store: object, patience: float) -> StoreUnusable:
    """It was asked so many seconds ago."""
    text = f"the store {store} has not answered for {patience:g} s: its disk or its server hangs, or is very slow"
    return StoreUnusable(text, hint="another folder as --store, or a longer setting store_s")
