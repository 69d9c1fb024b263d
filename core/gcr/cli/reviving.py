"""A job that was stopped comes back from its image: its processes first, suspended, and then its device memory."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gcr.cli import parts
from gcr.cli.asking import asked
from gcr.cli.options import Options
from gcr.cli.revivable import Revivable
from gcr.criu import program, tree, zeropages
from gcr.criu.pagemap import PAGE
from gcr.criu.plugins import plugins_of
from gcr.dumpfolder import dump_folder
from gcr.errors import WrongState
from gcr.image.store.location import store_of
from gcr.imageerrors import NoSuchImage
from gcr.job import runs
from gcr.job.decisions import KeptImage
from gcr.job.stopped import StoppedJob
from gcr.rendezvous.client import Client
from gcr.runtime import socket_path
from gcr.supervisor import JobSpec, Outcome, run
from gcr.supervisor.revival import Revival

if TYPE_CHECKING:
    from gcr.image.store.store import Store


class Reviving(Struct, frozen=True):
    """The way back of the processes of an image.

    attach: stay their parent in the foreground · began: the command, by the monotonic clock

    looked      CRIU works here
    brought     their memory is in a folder, each byte compared with its name
    compared    the files that they had open are as they were
    made        they are there, suspended
    """

    options: Options
    image: str
    store: str | None
    attach: bool
    began: float
    _marks: dict[str, float] = field(default_factory=dict)

    def bring_back(self, found: Revivable, then: Callable[[], int]) -> int:
        """Brings the processes back, suspended, and then does the rest. Returns its exit code, or the program's.

        Raises CriuUnusable, FilesChanged, NotRestored, WrongImage, WrongState; then there is no process of it.
        """
        with dump_folder(found.bytes, secret=bool(self.options.key().key())) as folder:
            done: Outcome = run(self._spec(found.job, folder), lambda _job, _pid: self._rest(then))
        return done.code if self.attach else self._rest(then)

    def phases(self) -> dict[str, float]:
        """Returns the seconds from the command's begin to the end of each phase."""
        return {name: at - self.began for name, at in self._marks.items()}

    def _rest(self, then: Callable[[], int]) -> int:
        self._mark("made")
        return then()

    def _mark(self, phase: str) -> None:
        self._marks[phase] = time.monotonic()

    def _spec(self, job: str, folder: Path) -> JobSpec:
        criu = program.find()

        def look() -> None:
            program.look(criu)
            self._mark("looked")

        asked(self.options, self.store, lambda store: bring(self.image, folder, store), look)
        self._mark("brought")
        stopped, saved = StoppedJob.read(folder), tree.saved_in(folder)
        _refuse_elsewhere(stopped)
        decision = stopped.decision
        kept = KeptImage(str(store_of(self.image, self.store)), self.image, bool(self.options.key().key()))
        plugins = plugins_of(decision.backend, decision.simulated)
        revival = Revival(criu, folder, stopped, saved, kept, plugins)
        revival.refuse_impossible(None if self.attach else str(runs.log_path(job, runs.identifier(stopped.token))))
        self._mark("compared")
        simulated = decision.backend if decision.simulated else None
        return JobSpec(
            stopped.argv,
            job,
            detach=not self.attach,
            backend=decision.backend,
            simulate=simulated,
            simulator=parts.simulator_of(simulated) if simulated else None,
            environment=dict(decision.environment),
            revival=revival,
        )


def is_here(job: str) -> bool:
    """Returns whether a daemon knows a job of this name."""
    with Client.connect() as client:
        return any(each.job == job for each in client.jobs().jobs)


def _refuse_elsewhere(stopped: StoppedJob) -> None:
    """Raises WrongState where the agents would look for another daemon than ours."""
    if stopped.socket != (here := str(socket_path())):
        text = f"the processes look for their daemon at {stopped.socket}, and this one is at {here}"
        raise WrongState(text, hint=f"GCR_SOCKET={stopped.socket}, for the daemon and for gcr restore")


def bring(image: str, folder: Path, store: "Store | None") -> None:
    """Makes CRIU's files in a folder, each byte compared, but for pages of zeros that CRIU need not restore.

    Raises NoSuchImage, Damaged, StoreUnusable and others of the store.
    """
    from gcr.image.read.folder import bring_file, bring_folder
    from gcr.image.read.reader import ImageReader

    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    with ImageReader(store, image, came=lambda _bytes: store.pulse()) as reader:
        pages = {name for name in reader.files if name.startswith("pages-")}
        bring_folder(reader, folder, reader.files.keys() - pages)
        spare = zeropages.spare(folder, lambda name: reader.files[name][1].bytes if name in pages else -1)
        bring_folder(reader, folder, pages - spare.keys())
        for name, known in spare.items():
            known.leave_out(bring_file(reader, name, folder, known.spans, PAGE))
