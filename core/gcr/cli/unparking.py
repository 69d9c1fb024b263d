"""The way back of processes from an image: their files in a folder, and the revival of a parked job from its own store.

The supervisor of a parked job makes its processes again. It knows no stores: this module is its `Reviver`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gcr.cli.asking import Asking, Line
from gcr.cli.revivable import revivable
from gcr.criu import known, program, tree, zeropages
from gcr.criu.pagemap import PAGE
from gcr.criu.plugins import plugins_of
from gcr.dumpfolder import dump_folder
from gcr.errors import WrongState
from gcr.imageerrors import NoSuchImage, WrongImage
from gcr.job.decisions import KeptImage
from gcr.job.stopped import StoppedJob
from gcr.listing import listed
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
    size = Asking(store, lambda line: revivable(image, _opened(store, line)).bytes).answer()
    with dump_folder(size, secret=False) as folder:
        Asking(store, lambda line: bring(image, folder, _opened(store, line))).answer()
        revival = revival_in(folder, criu, KeptImage(store, image))
        revival.refuse_impossible(log)
        yield revival


def import_all() -> None:
    """Imports what children need that look at a store.

    They are forked beside the supervisor's other threads. A child that finds an import of theirs under way would wait
    for it for ever.
    """
    import gcr.image.read.folder
    import gcr.image.read.reader
    import gcr.image.store.store  # noqa: F401


def _opened(store: str, line: Line) -> "Store":
    from gcr.image.store.store import Store  # in the child alone

    return Store(Path(store), pulse=line.pulse)


def revival_in(folder: Path, criu: Path, kept: KeptImage) -> Revival:
    """Returns the way back of the processes in a folder. Raises Damaged, WrongState, CriuUnusable."""
    stopped = StoppedJob.read(folder)
    _refuse_elsewhere(stopped)
    plugins = plugins_of(stopped.decision.backend, stopped.decision.simulated)
    return Revival(criu, folder, stopped, tree.saved_in(folder), kept, plugins)


def bring(image: str, folder: Path, store: "Store | None", seal: bytes = b"") -> None:
    """Makes CRIU's files in a folder, each byte compared, but for pages of zeros that CRIU need not restore.

    A file that is there was brought before, from the image of this `seal`. Raises NoSuchImage, Damaged, StoreUnusable
    and others of the store; WrongImage where the image is another one now.
    """
    from gcr.image.read.folder import bring_file, bring_folder
    from gcr.image.read.reader import ImageReader

    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    with ImageReader(store, image, came=lambda _bytes: store.pulse()) as reader:
        if seal and reader.manifest.seal() != seal:
            raise WrongImage(f"image {image} has just become another one", hint="again")
        pages = {name for name in reader.files if name.startswith("pages-")}
        bring_folder(reader, folder, reader.files.keys() - pages - {each.name for each in listed(folder)})
        spare = zeropages.spare(folder, lambda name: reader.files[name][1].bytes if name in pages else -1)
        bring_folder(reader, folder, pages - spare.keys())
        for name, known in spare.items():
            known.leave_out(bring_file(reader, name, folder, known.spans, PAGE))


def _refuse_elsewhere(stopped: StoppedJob) -> None:
    """Raises WrongState where the agents would look for another daemon than ours."""
    if stopped.socket != (here := str(socket_path())):
        text = f"the processes look for their daemon at {stopped.socket}, and this one is at {here}"
        raise WrongState(text, hint=f"GCR_SOCKET={stopped.socket}, for the daemon and for gcr restore")
