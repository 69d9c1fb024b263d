"""An image that is opened once: a child tells what is in it, and then brings the files of its processes.

To open an image takes longer the more chunks it has, and an interpreter has to be forked for it. The child reads while
its parent registers the job, looks whether CRIU works, and so on.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gcr.cli.asking import Asking, Line, Talk
from gcr.cli.revivable import Revivable, revivable

if TYPE_CHECKING:
    from gcr.image.store.store import Store

Open = Callable[["Callable[[Store | None, Line], None]"], Asking[None]]
"""Returns what asks a child to look at the store of an image."""

_FOUND = "found"


class Opening(Struct):
    """An image within its block. `found`: what is in it."""

    found: Revivable
    _asking: Asking[None]
    _talk: Talk
    _wanted: int
    _within: ExitStack

    def bring(self, folder: Path) -> None:
        """Begins to bring the files of the processes to a folder, but those that are there."""
        os.write(self._wanted, os.fsencode(folder))

    def await_brought(self) -> None:
        """Returns once all of them are there, each byte compared. Raises Damaged, StoreUnusable, DeadlinePassed …"""
        self._asking.begin_anew()
        self._asking.awaited(self._talk)
        self.end()

    def end(self) -> None:
        """Ends the child."""
        self._within.close()

    def let_go(self) -> None:
        """Closes the descriptors, in a process that was forked since: the child is its parent's."""
        os.close(self._wanted)
        os.close(self._talk.fd)


@contextmanager
def opening(image: str, open: Open, meanwhile: Callable[[], object] = lambda: None) -> Iterator[Opening]:
    """Opens an image for the block. `meanwhile`: called while the child does.

    Raises NoSuchImage, Damaged, WrongImage and others of the store, and as `open`.
    """
    with ExitStack() as stack:
        told, wanted = os.pipe()
        stack.callback(os.close, wanted)
        try:
            asking = open(partial(_serve, image, told, wanted))
            talk = stack.enter_context(asking.under_way())
        finally:
            os.close(told)
        meanwhile()
        yield Opening(asking.awaited(talk, _FOUND), asking, talk, wanted, stack)


def _serve(image: str, told: int, wanted: int, store: "Store | None", line: Line) -> None:
    """Runs in the child."""
    from gcr.cli.bringing import bring  # its parent need not wait for these imports

    os.close(wanted)
    with revivable(image, store) as (found, reader):
        line.tell(_FOUND, found)
        folder = os.read(told, os.pathconf("/", "PC_PATH_MAX"))
        if reader and folder:
            bring(reader, Path(os.fsdecode(folder)))
