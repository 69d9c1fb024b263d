"""A job that was stopped comes back from its image: its processes first, suspended, and then its device memory."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gcr.cli import parts
from gcr.cli.asking import asked
from gcr.cli.options import Options
from gcr.cli.revivable import Revivable
from gcr.criu import program, tree
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
    """The way back of the processes of an image. `attach`: stay their parent in the foreground."""

    options: Options
    image: str
    store: str | None
    attach: bool = False

    def bring_back(self, found: Revivable, then: Callable[[], int]) -> int:
        """Brings the processes back, suspended, and then does the rest. Returns its exit code, or the program's.

        Raises CriuUnusable, FilesChanged, NotRestored, WrongImage, WrongState; then there is no process of it.
        """
        with dump_folder(found.bytes, secret=bool(self.options.key().key())) as folder:
            spec = self._spec(found.job, folder)

            done: Outcome = run(spec, lambda _job, _pid: then())
        return done.code if self.attach else then()

    def _spec(self, job: str, folder: Path) -> JobSpec:
        criu = program.look(program.find()).program
        asked(self.options, self.store, lambda store: _bring(self.image, folder, store))
        stopped, saved = StoppedJob.read(folder), tree.saved_in(folder)
        _refuse_elsewhere(stopped)
        decision = stopped.decision
        kept = KeptImage(str(store_of(self.image, self.store)), self.image, bool(self.options.key().key()))
        plugins = plugins_of(decision.backend, decision.simulated)
        revival = Revival(criu, folder, stopped, saved, kept, plugins)
        revival.refuse_impossible(None if self.attach else str(runs.log_path(job, runs.identifier(stopped.token))))
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


def _bring(image: str, folder: Path, store: "Store | None") -> None:
    from gcr.image.read.folder import bring_folder
    from gcr.image.read.reader import ImageReader

    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    with ImageReader(store, image, came=lambda _bytes: store.pulse()) as reader:
        bring_folder(reader, folder)
