"""The parts that operations of an image helper share: the store of a request, and the progress."""

import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gcr.errors import PeerGone
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.crypto.key import lent_key
from gcr.image.store.store import Store
from gcr.protocol.channel import Request
from gcr.protocol.operations.image import InStore
from gcr.protocol.operations.operation import Done

TELL_EVERY = 0.2  # seconds


def store_of(asked: InStore[Any], fds: Sequence[int], pulse: Callable[[], object] = lambda: None) -> Store:
    """Opens the store that a request names, as `StorePlace` does. Raises UsageError, StoreUnusable, WrongKey …"""
    key = lent_key(fds, asked.encrypted)
    if key:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the key and the bytes it hides
    return Store(Path(asked.store), cipher_of(key), pulse)


@contextmanager
def telling(request: Request, done: Callable[[], int], total: int) -> Iterator[None]:
    """Tells the caller within the block, every TELL_EVERY seconds, how many bytes are done."""
    over = threading.Event()

    def tell() -> None:
        with suppress(PeerGone):
            while not over.wait(TELL_EVERY):
                request.progress(Done(done(), total).to_json())

    teller = threading.Thread(target=tell, name="gcr-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
