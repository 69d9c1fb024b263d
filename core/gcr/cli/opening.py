"""An image that is opened once: a child tells what is in it, and then brings the files of its processes.

To open an image takes longer the more chunks it has, and an interpreter has to be forked for it. The child reads while
its parent registers the job, looks whether CRIU works, and so on. The memory that CRIU need not restore stays in the
child. It writes that to the processes once CRIU has made them, and ends.
"""

import os
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gcr.cli.asking import Asking, Line, Talk, outlive
from gcr.cli.revivable import Revivable, revivable
from gcr.errors import GcrError
from gcr.faults import reach
from gcr.imageerrors import NotRestored
from gcr.interpreter import switch_often

if TYPE_CHECKING:
    from gcr.criu.aside import Aside
    from gcr.image.store.store import Store

Open = Callable[["Callable[[Store | None, Line], None]"], Asking[None]]
"""Returns what asks a child to look at the store of an image."""

_FOUND, _BROUGHT = "found", "brought"
_LOOK = b"look"
_FILES = b"files"
_FILL, _FILLED = b"fill", b"filled"
_FILES_S = 5.0  # for small files
_MOST_WORDS = 1 << 16  # bytes of the child's answer
_FILL_S, _FILL_BYTES_PER_S = 60.0, 100e6  # its time, and more for each byte


class Opening(Struct):
    """An image within its block. `found`: what is in it."""

    found: Revivable
    _asking: Asking[None]
    _talk: Talk
    _orders: socket.socket

    def bring(self, folder: Path) -> None:
        """Begins to bring the files of the processes to a folder, but those that are there."""
        self._orders.send(os.fsencode(folder))

    def await_brought(self) -> None:
        """Returns once all bytes are there, or in the child, each compared. Raises Damaged, StoreUnusable …"""
        self._asking.begin_anew()
        self._asking.awaited(self._talk, _BROUGHT)

    def await_files(self) -> bool:
        """Returns whether all files but those of pages are there, compared, within some seconds.

        A process that was forked since may call it, too; one call in all.
        """
        self._orders.settimeout(_FILES_S)
        try:
            return self._orders.recv(_MOST_WORDS) == _FILES
        except OSError:  # of the timeout
            return False

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Has the child write what it has to the processes, which CRIU has made and holds, within the block.

        The child has done so, or given up, when the block is over: its error waits, since the pid of a process that is
        ended may be given to another one. Raises NotRestored.
        A process that was forked since may call it, too; one call in all.
        """
        self._order_fill()
        try:
            yield
        except BaseException:
            with suppress(NotRestored):
                self._await_filled()
            raise
        self._await_filled()

    def _order_fill(self) -> None:
        with _answering():
            self._orders.settimeout(_FILL_S + self.found.bytes / _FILL_BYTES_PER_S)
            self._orders.send(_FILL)

    def _await_filled(self) -> None:
        try:
            with _answering():
                while (said := self._orders.recv(_MOST_WORDS)) == _FILES:
                    pass
        finally:
            self._orders.close()
        if said != _FILLED:
            raise NotRestored(said.decode() or "the process that had the memory of the processes has died")

    def let_go(self) -> None:
        """Closes what `fill` does not need, in a process that was forked since: the child is its parent's."""
        os.close(self._talk.fd)


@contextmanager
def _answering() -> Iterator[None]:
    """Raises NotRestored where the child does not answer."""
    try:
        yield
    except OSError as error:
        raise NotRestored(f"the process that had the memory of the processes did not answer: {error}") from error


@contextmanager
def opening(
    image: str,
    open: Open,
    meanwhile: Callable[[], object] = lambda: None,
    until_there: Callable[[], object] | None = None,
) -> Iterator[Opening]:
    """Opens an image for the block. `meanwhile`: called while the child does.

    until_there: called then, and returns once the image is there. The child does before what does not depend on it: it
    reads the ends of the packs that are there.
    Raises NoSuchImage, Damaged, WrongImage and others of the store, and as `open`, `meanwhile` and `until_there`.
    """
    with ExitStack() as stack:
        orders, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(orders.close)
        with its:
            asking = open(partial(_serve, image, its, orders, until_there is not None))
            talk = stack.enter_context(asking.under_way())
        if until_there is None:
            _send(orders, _LOOK)
        meanwhile()
        if until_there:
            until_there()
            asking.begin_anew()
            _send(orders, _LOOK)
        yield Opening(asking.awaited(talk, _FOUND), asking, talk, orders)


def _send(orders: socket.socket, order: bytes) -> None:
    with suppress(ConnectionError):  # the child has ended: its last message says why
        orders.send(order)


def _serve(
    image: str, orders: socket.socket, others: socket.socket, ahead: bool, store: "Store | None", line: Line
) -> None:
    """Runs in the child. ahead: the image may be there later alone."""
    from gcr.cli.bringing import bring  # its parent need not wait for these imports
    from gcr.criu import messages

    others.close()
    switch_often()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold memory of the program
    if ahead:
        messages.prepare()
    if ahead and store:
        store.packs.read_ahead()
    if orders.recv(len(_LOOK)) != _LOOK:
        return
    with revivable(image, store) as (found, reader):
        line.tell(_FOUND, found)
        if found.bytes:
            messages.prepare()
        folder = orders.recv(os.pathconf("/", "PC_PATH_MAX"))
        if not (reader and folder):
            return
        kept = bring(reader, Path(os.fsdecode(folder)), lambda: orders.send(_FILES))
        outlive()  # its parent's end: the half that stays of a detached job asks for the rest
        line.tell(_BROUGHT, None)
    if orders.recv(len(_FILL)) == _FILL:  # else no process is there any more that would ask
        orders.send(_filled(kept))


def _filled(kept: "Sequence[Aside]") -> bytes:
    """Returns the answer, once memory was written to the processes."""
    from gcr.criu.aside import fill

    try:
        reach("restore.fill")
        fill(kept)
    except (GcrError, OSError) as error:
        return str(error).encode()[:_MOST_WORDS] or repr(error).encode()
    return _FILLED
