"""A job that was stopped comes back from its image: its processes first, suspended, and then its device memory."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.cli import parts
from gcr.cli.opening import Opening
from gcr.cli.options import Options
from gcr.cli.output import say_stopped
from gcr.cli.unparking import import_all, revival_in, reviver
from gcr.criu import known, program
from gcr.dumpfolder import dump_folder
from gcr.faults import reach
from gcr.image.store.location import store_of
from gcr.job import runs
from gcr.job.decisions import KeptImage
from gcr.rendezvous.client import Client
from gcr.supervisor import JobSpec, Outcome, run
from gcr.supervisor.revival import Revival


class Reviving(Struct, frozen=True):
    """The way back of the processes of an image.

    attach: stay their parent in the foreground · began: the command, by the monotonic clock
    in_place: the job comes back on the devices that it left

    Its notes were read already. With these it is registered: the daemon fills the devices beside all that follows.

    looked      CRIU works here
    compared    the files that they had open are as they were
    brought     their memory is in a folder, each byte compared with its name
    made        they are there, suspended
    """

    options: Options
    image: str
    store: str | None
    attach: bool
    began: float
    in_place: bool = False
    _marks: dict[str, float] = field(default_factory=dict)

    def bring_back(self, opened: Opening, then: Callable[[], int]) -> int:
        """Brings the processes back, suspended, and then does the rest. Returns its exit code, or the program's.

        Raises CriuUnusable, FilesChanged, NotRestored, WrongImage, WrongState; then there is no process of it.
        """
        from gcr.image.read.folder import put_files

        import_all()
        found = opened.found
        with dump_folder(found.bytes, secret=bool(self.options.key().key())) as folder:
            put_files(found.notes, folder)
            opened.bring(folder)  # beside all that follows, until no process may be made without it
            done: Outcome = run(self._spec(opened, folder), lambda _job, _pid: self._rest(then))
        if done.image:
            say_stopped(done.job, done.image, done.store)
        return done.code if self.attach else self._rest(then)

    def phases(self) -> dict[str, float]:
        """Returns the seconds from the command's begin to the end of each phase."""
        return {name: at - self.began for name, at in self._marks.items()}

    def _rest(self, then: Callable[[], int]) -> int:
        self._mark("made")
        return then()

    def _mark(self, phase: str) -> None:
        self._marks[phase] = time.monotonic()

    def _spec(self, opened: Opening, folder: Path) -> JobSpec:
        kept = KeptImage(str(store_of(self.image, self.store)), self.image, bool(self.options.key().key()))
        revival = replace(revival_in(folder, program.find(), kept), in_place=self.in_place)
        stopped, decision = revival.stopped, revival.stopped.decision
        simulated = decision.backend if decision.simulated else None
        return JobSpec(
            stopped.argv,
            opened.found.job,
            detach=not self.attach,
            backend=decision.backend,
            simulate=simulated,
            simulator=parts.simulator_of(simulated) if simulated else None,
            environment=dict(decision.environment),
            revival=replace(
                revival,
                prepare=partial(self._prepare, opened, revival),
                let_go=opened.let_go,
                await_files=(lambda: False) if self.attach else opened.await_files,
                filling=opened.filling,
                bytes=opened.found.bytes,
            ),
            reviver=reviver,
        )

    def _prepare(self, opened: Opening, revival: Revival) -> None:
        """Compares the files that the processes had open, and awaits those of the image. No process is made before."""
        reach("restore.registered")
        known.look(revival.criu)
        self._mark("looked")
        log = runs.log_path(opened.found.job, runs.identifier(revival.stopped.token))
        revival.refuse_impossible(str(log))
        self._mark("compared")
        opened.await_brought()
        self._mark("brought")


def is_here(job: str) -> bool:
    """Returns whether a daemon knows a job of this name."""
    with Client.connect() as client:
        return any(each.job == job for each in client.jobs().jobs)
