"""The way back of processes from a folder with their files, and the revival of a parked job from its own store.

The supervisor of a parked job makes its processes again. It knows no stores: this module is its `Reviver`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gcr.cli.asking import Asking, Line
from gcr.cli.opening import opening
from gcr.criu import known, program, tree
from gcr.criu.plugins import plugins_of
from gcr.dumpfolder import dump_folder
from gcr.errors import WrongState
from gcr.job.decisions import KeptImage
from gcr.job.stopped import StoppedJob
from gcr.runtime import socket_path
from gcr.supervisor.revival import Revival

if TYPE_CHECKING:
    from gcr.image.store.store import Store


@contextmanager
def reviver(store: str, image: str, log: str | None) -> Iterator[Revival]:
    """Yields the processes of an image in a private store, each byte compared with its name. Implements `Reviver`.

    Raises CriuUnusable, FilesChanged, NoSuchImage, NotRestored, WrongImage, Damaged, NoRoom and others.
    """
    criu = known.look(program.find()).program
    import_all()
    with (
        opening(image, partial(_asking, store)) as opened,
        dump_folder(opened.found.bytes, secret=False) as folder,
    ):
        opened.bring(folder)
        opened.await_brought()
        revival = revival_in(folder, criu, KeptImage(store, image))
        revival = replace(revival, filling=opened.filling, bytes=opened.found.bytes)
        revival.refuse_impossible(log)
        yield revival


def import_all() -> None:
    """Imports what children need that look at a store.

    They are forked beside the supervisor's other threads. A child that finds an import of theirs under way would wait
    for it for ever.
    """
    import gcr.cli.bringing
    import gcr.image.read.folder
    import gcr.image.read.reader
    import gcr.image.store.store  # noqa: F401


def _asking(store: str, look: "Callable[[Store | None, Line], None]") -> Asking[None]:
    return Asking(store, lambda line: look(_opened(store, line), line))


def _opened(store: str, line: Line) -> "Store":
    from gcr.image.store.store import Store  # in the child alone

    return Store(Path(store), pulse=line.pulse)


def revival_in(folder: Path, criu: Path, kept: KeptImage) -> Revival:
    """Returns the way back of the processes in a folder. Raises Damaged, WrongState, CriuUnusable."""
    stopped = StoppedJob.read(folder)
    _refuse_elsewhere(stopped)
    plugins = plugins_of(stopped.decision.backend, stopped.decision.simulated)
    return Revival(criu, folder, stopped, tree.saved_in(folder), kept, plugins)


def _refuse_elsewhere(stopped: StoppedJob) -> None:
    """Raises WrongState where the agents would look for another daemon than ours."""
    if stopped.socket != (here := str(socket_path())):
        text = f"the processes look for their daemon at {stopped.socket}, and this one is at {here}"
        raise WrongState(text, hint=f"GCR_SOCKET={stopped.socket}, for the daemon and for gcr restore")
