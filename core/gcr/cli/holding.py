"""`gcr hold`: a process in front of a job that outlives it. It is there for as long as the job is on its device."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from tempfile import TemporaryFile
from threading import Event

from msgspec import Struct

from gcr.api.listings import JobInfo
from gcr.cli import ended
from gcr.cli.joblog import JobLog
from gcr.cli.output import print_text
from gcr.errors import DaemonUnavailable, NameTaken, NoOutput, NotAllKnown, WrongState
from gcr.job import runs
from gcr.job.runs import Run
from gcr.library import calls
from gcr.library.answers import checked
from gcr.library.job import Job

_BUSY = (DaemonUnavailable, NotAllKnown, WrongState)
LOOK_S = 0.2
SETTLE_S = 20.0  # another command on the job, or the end of a job of this name, may take so long
PARKED = frozenset({"suspended", "data_suspended"})
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Held(Struct, frozen=True):
    """The end of a hold: the job's state, and the exit code of its program if that has ended."""

    state: str
    code: int | None = None


class Front(Struct):
    """In front of one job.

    command: of the program · flags: of `gcr run` · timeout: seconds, of a checkpoint and a restore · shows: whether
    the job's output is printed
    """

    job: str
    command: Sequence[str]
    flags: Sequence[str]
    timeout: float | None
    shows: bool

    def hold(self) -> Held:
        """Starts the job or brings it back, and waits until it is off its device or has ended. A signal parks it.

        Raises NameTaken for a job of this name that runs another one; CannotStart, and what a restore and a checkpoint
        raise: then the job is as it was before.
        """
        with _signalled() as asked, ExitStack() as files:
            log = self._log(is_new=self._bring())
            if log:
                files.enter_context(closing(log))
            return self._stand(asked, log)

    def _bring(self) -> bool:
        """Returns whether the job is a new one. Waits for another command, and for an end, to be over."""
        end = time.monotonic() + SETTLE_S
        while True:
            try:
                return self._brought(_row(self.job))
            except _BUSY:
                if time.monotonic() > end:
                    raise
            time.sleep(LOOK_S)

    def _brought(self, row: JobInfo | None) -> bool:
        if row is None:
            self._start()
            return True
        if list(row.command) != list(self.command):
            text = f"job {self.job}, pid {row.pid}, runs another command: {' '.join(row.command)}"
            raise NameTaken(text, hint=f"end it, or hold under another name: gcr ps {self.job}")
        if row.changing:
            raise WrongState(f"job {self.job} is being checkpointed or restored just now", state=row.state)
        if row.state != "running":
            Job(self.job, None).restore(timeout=self.timeout)
        return False

    def _start(self) -> None:
        words = ["run", "--detach", "--name", self.job, *self.flags, "--", *self.command]
        with TemporaryFile() as said, TemporaryFile() as error:  # a pipe would stay open as long as the job
            done = subprocess.run(
                [sys.executable, "-m", "gcr", "--json", *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=error,
                start_new_session=True,
            )
            said.seek(0)
            error.seek(0)
            try:
                checked("run", done.returncode, said.read(), error.read())
            except NameTaken as taken:  # `ps` no longer has it
                raise WrongState(f"a job {self.job} is ending", state="running") from taken

    def _log(self, is_new: bool) -> JobLog | None:
        """Opens the job's output: all of it for a new job, else what comes from now on."""
        if not self.shows:
            return None
        try:
            log = JobLog.of(ended.newest(self.job))
        except NoOutput:
            return None
        if not is_new:
            log.skip()
        return log

    def _stand(self, asked: Event, log: JobLog | None) -> Held:
        run, park = ended.newest(self.job), Parking(self.job, self.timeout)
        while True:
            run = runs.again(run)
            held = _ended(run) if run.end else park.done() if asked.is_set() else None
            held = held or _off(self.job)
            _show(log)  # after the look: what was printed before an end is shown
            if held:
                return held
            time.sleep(LOOK_S)


class Parking(Struct):
    """The checkpoint that a signal asked for. `timeout`: seconds."""

    job: str
    timeout: float | None
    _since: float = 0.0

    def done(self) -> Held | None:
        """Returns None while another command has the job. Raises what a checkpoint raises."""
        self._since = self._since or time.monotonic()
        try:
            return Held(Job(self.job, None).checkpoint(timeout=self.timeout).state)
        except WrongState:
            if _off(self.job) is None and time.monotonic() - self._since > SETTLE_S:
                raise
            return None


def _row(job: str) -> JobInfo | None:
    """Raises NotAllKnown, DaemonUnavailable."""
    return next((row for row in calls.jobs() if row.job == job and row.state != "exited"), None)


def _off(job: str) -> Held | None:
    """Returns how a job is off its device, None if it is not, or while no daemon knows."""
    with suppress(NotAllKnown, DaemonUnavailable):
        row = _row(job)
        if row and row.state in PARKED and not row.changing:
            return Held(row.state)
    return None


def _ended(run: Run) -> Held:
    """Raises EndUnknown."""
    end = ended.awaited(run.job, None).end
    assert end
    return Held(end.state, end.code)


def _show(log: JobLog | None) -> None:
    if log:
        for piece in log.fresh():
            print_text(piece)


@contextmanager
def _signalled() -> Iterator[Event]:
    """Yields an event, which a signal that asks to stop sets instead of ending this process."""
    asked = Event()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in STOPPING}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
