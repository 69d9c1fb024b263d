"""Removals of images as events: the command tells the daemon, if one runs, which images it removed, or why not."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.api.answers import Pong
from gcr.api.requests import NoteRemovalRequest
from gcr.errors import GcrError, typed
from gcr.rendezvous.client import CONNECT_TIMEOUT, Client

log = logging.getLogger(__name__)


class Removal(Struct):
    """The images that a command is to remove, and then those that it has removed. `quiet`: it removes nothing."""

    images: Sequence[str] = ()
    bytes_freed: int = 0
    quiet: bool = False

    def done(self, images: Sequence[str], bytes_freed: int) -> None:
        self.images, self.bytes_freed = images, bytes_freed


@contextmanager
def told(command: str, store: Path, removal: Removal) -> Iterator[Removal]:
    """Tells the daemon of the removal within the block, once it is over. Starts no daemon, and adds no error."""
    began, error = time.monotonic(), None
    try:
        yield removal
    except Exception as caught:
        error = typed(caught)
        raise
    finally:
        if not removal.quiet:
            _tell(command, store, removal, time.monotonic() - began, error)


def _tell(command: str, store: Path, removal: Removal, took_s: float, error: GcrError | None) -> None:
    failed: dict[str, Any] = {"code": error.code, "exit": error.exit, "message": error.message} if error else {}
    try:
        request = NoteRemovalRequest(
            command=command,
            store=str(store),
            images=tuple(removal.images),
            bytes_freed=removal.bytes_freed,
            took_s=took_s,
            **failed,
        )
        with Client.connect(autostart=False, timeout=CONNECT_TIMEOUT) as client:
            client.ask(request, Pong)
    except GcrError as untold:
        log.info("no daemon was told of this %s: %s", command, untold)
