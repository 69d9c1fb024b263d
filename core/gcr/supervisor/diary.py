"""Files that a supervisor keeps of its job: the record of its end, and a detached job's output, within bounds.

Nothing here may stop or delay the program. A folder that cannot be written costs the record, and says so in the log.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from gcr import config, processes
from gcr.config import Config
from gcr.errors import GcrError
from gcr.job import runs
from gcr.job.log import turn
from gcr.job.runs import End, Run
from gcr.runtime import socket_path

log = logging.getLogger("gcr.supervisor")


class Diary(Struct):
    """`log`: the file of a detached job's output, a whole path."""

    token: str
    log: str | None = None
    _run: Run | None = None
    _settings: Config = field(default_factory=lambda: _in_force())

    @property
    def _id(self) -> str:
        return runs.identifier(self.token)

    def place(self, job: str) -> str:
        """Returns the path of the job's log, where it is detached, or was before it came back in the foreground."""
        return str(runs.log_path(job, self._id))

    def leave_terminal(self, job: str) -> None:
        """Makes this process, and the program it starts, read nothing and write to the job's log.

        Raises OSError, UnsafeRuntime: without a place for its output no program is detached.
        """
        path = self.place(job)
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, source in ((0, null), (1, out), (2, out)):
            os.dup2(source, number)
        os.close(null)
        os.close(out)
        self.log = path

    def begin(self, job: str, command: Sequence[str], pid: int) -> None:
        """Writes the start of the program."""
        self._run = _begun(job, self._id, command, pid, self.log)
        self._write("the start")

    def tidy(self) -> None:
        """Removes old records. No program waits for it."""
        _tried("remove old records", lambda: runs.prune(self._settings.keep_jobs))

    def again(self, pid: int) -> None:
        """Writes the program's return from an image: as a process it has begun anew."""
        if self._run:
            self._run = replace(self._run, pid=pid, start=processes.start_time(pid) or 0)
            self._write("the return")

    def end(self, returned: int) -> None:
        """Writes the end of the program. returned: `Popen.returncode`."""
        if self._run:
            self._run = replace(self._run, end=End.of_code(returned))
            self._write("the end")

    def add(self, was: str, image: str | None, store: str | None) -> None:
        """Adds the job's state at the end, and the image that it was stopped into, as the daemon reports them."""
        if self._run and self._run.end:
            self._run = replace(self._run, end=replace(self._run.end, was=was, image=image, store=store))
            self._write("the end")

    def bound(self) -> None:
        """Keep the log small: when it is full its content moves to `.1`, and the program goes on at the beginning.

        What the program prints between the copy and the cut, some microseconds, is lost.
        """
        if self.log:
            with suppress(OSError):
                turn(Path(self.log), self._settings.job_log_bytes)

    def _write(self, what: str) -> None:
        _tried(f"write down {what}", lambda: runs.write(self._run) if self._run else None)


def _begun(job: str, identity: str, command: Sequence[str], pid: int, output: str | None) -> Run:
    return Run(
        job=job,
        id=identity,
        socket=str(socket_path()),
        boot=processes.boot_id(),
        space=processes.pid_space(),
        command=tuple(command),
        supervisor=os.getpid(),
        supervisor_start=processes.start_time(os.getpid()) or 0,
        pid=pid,
        start=processes.start_time(pid) or 0,
        began=processes.started_at(pid),
        log=output,
    )


def _tried(what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except (OSError, GcrError) as error:
        log.warning("cannot %s: %s", what, error)


def _in_force() -> Config:
    try:
        return config.load()
    except GcrError as error:  # the daemon, which needs them more, says so
        log.warning("%s", error)
        return Config()
