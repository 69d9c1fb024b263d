"""Records of jobs: one small file a job, from its program's start until some time after its end.

The supervisor writes a record when the program has started and again when it has ended, so an end is known without any
daemon. Where the supervisor was killed the daemon notes the end; where both were, the next reader sees it.

    <state>/jobs/<job>.<id>.json         the record, mode 0600
    <state>/jobs/<job>.<id>.json.<pid>-<thread>
                                         being written; left over from a writer that died, it says nothing
    <state>/jobs/<job>.<id>.log          the output of a detached job, mode 0600
    <state>/jobs/<job>.<id>.log.1        the part of it that was there when the file was last full
"""

import json
import logging
import os
import re
import shlex
import signal as signals
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from threading import get_native_id
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from gcr import processes, units
from gcr.errors import GcrError, NoSuchJob
from gcr.job.roundimages import is_of_migration
from gcr.listing import listed
from gcr.parked import IMAGE, left_by
from gcr.processes import ProcessIdentity
from gcr.runtime import own_directory, socket_path, state_dir

if TYPE_CHECKING:
    from gcr.job.decisions import KeptImage

log = logging.getLogger(__name__)

STOPPED = "stopped"  # the state of a job that an image has, processes and all
KEEP_S = 30 * 86400.0  # seconds after which the record of an ended job goes, with its log
WRITING_S = 3600.0  # for so long an unfinished record may have a writer that cannot be seen from here
_ENDING_S, _LOOK_S = 2.0, 0.02  # a supervisor writes an end that can be seen within that time
_PROBE_BYTES = 4096  # more than any file system keeps beside a name
_ENDING = ".json"
_UNFINISHED = re.compile(r"\.json\.([0-9]+)(-[0-9]+)?\Z")  # by the writer's pid


class How(StrEnum):
    """The way in which a program ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    UNKNOWN = "unknown"


class End(Struct, frozen=True, kw_only=True):
    """The end of a job's program. `at`: seconds since the epoch.

    code: what `gcr run` returned, None if unknown · signal: the one that ended it · was: the job's state at that time
    image: the one that it was stopped into · store: the image's, a whole path
    """

    how: How
    at: float
    code: int | None = None
    signal: int | None = None
    was: str | None = None
    image: str | None = None
    store: str | None = None  # None also in a record of an earlier version

    @classmethod
    def of_code(cls, returned: int) -> Self:
        """Makes an end of `Popen.returncode`, which is negative for a signal."""
        if returned < 0:
            return cls(how=How.SIGNALLED, at=time.time(), code=128 - returned, signal=-returned)
        return cls(how=How.EXITED, at=time.time(), code=returned)

    @property
    def state(self) -> str:
        return self.was if self.was in ("lost", STOPPED) else "exited"

    @property
    def moves(self) -> bool:
        return self.image is not None and is_of_migration(self.image)

    def said(self) -> str:
        """Returns text for people: `exit code 1`, `killed by SIGKILL while suspended`."""
        if self.moves:
            return "stopped to move to another node"
        if self.was == STOPPED:
            return f"stopped into image {self.image}" if self.image else "stopped into an image"
        if self.how == How.UNKNOWN:
            found = "exit code unknown"
        elif self.signal is not None:
            found = f"killed by {_signal_name(self.signal)}"
        else:
            found = f"exit code {self.code}"
        return found if self.was in (None, "running", "exited") else f"{found} while {self.was}"


class Run(Struct, frozen=True, kw_only=True):
    """One job. `began`: seconds since the epoch; starts of processes: clock ticks after boot; `log`: a whole path."""

    job: str
    id: str
    socket: str  # of the daemon that it belongs to
    boot: str
    space: str  # of pids: what is in another cannot be looked at
    command: tuple[str, ...]
    supervisor: int
    supervisor_start: int
    pid: int
    start: int
    began: float
    log: str | None = None
    end: End | None = None

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for anything else than a record."""
        end = body["end"]
        kept = End(**{**end, "how": How(end["how"])}) if end else None
        return cls(**{**body, "command": tuple(body["command"]), "end": kept})

    def row(self) -> dict[str, Any]:
        """An ended job as `gcr ps --all` and `gcr wait` have it."""
        assert self.end
        return {
            "job": self.job,
            "pid": self.pid,
            "state": self.end.state,
            "how": self.end.how.value,
            "exit_code": self.end.code,
            "signal": self.end.signal,
            "was": self.end.was,
            "image": self.end.image,
            "started": units.moment(self.began),
            "ended": units.moment(self.end.at),
            "log": self.log,
            "command": list(self.command),
        }

    @property
    def supervised(self) -> bool:
        return self._lives(self.supervisor, self.supervisor_start)

    @property
    def lives(self) -> bool:
        """Returns True if its program runs, or its supervisor has yet to say how it ended."""
        return self.end is None and (self.supervised or self.program_lives)

    @property
    def program_lives(self) -> bool:
        return self._lives(self.pid, self.start)

    @property
    def told(self) -> bool:
        """Returns True if its end is known, or could be seen from here."""
        return self.end is not None or self.boot != processes.boot_id() or self.space == processes.pid_space()

    @property
    def is_told(self) -> bool:
        """Returns True if its end is written down, with what the daemon knows of it, or no supervisor will do so."""
        return bool(self.end and self.end.was) or not self.supervised

    def _lives(self, pid: int, start: int) -> bool:
        return self.boot == processes.boot_id() and processes.alive(ProcessIdentity(pid, start))


def identifier(token: str) -> str:
    """Names a job's files; the job's secret cannot be told from it."""
    return blake2b(token.encode(), digest_size=5, person=b"gcr job").hexdigest()


def folder() -> Path:
    """Raises UnsafeRuntime."""
    return own_directory(state_dir() / "jobs")


def log_path(job: str, identity: str) -> Path:
    """Raises UnsafeRuntime."""
    return folder() / f"{job}.{identity}.log"


def write(run: Run) -> None:
    """Put the record in place, whole. Raises OSError, UnsafeRuntime."""
    path = _path(run)
    fresh = path.with_name(f"{path.name}.{os.getpid()}-{get_native_id()}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(to_builtins(run), file)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def refusal() -> str:
    """Returns why no record can be written now; nothing where one can be."""
    try:
        probe = folder() / f"probe.{os.getpid()}"
        try:
            probe.write_bytes(bytes(_PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except (OSError, GcrError) as error:
        return f"{state_dir()}: {error.strerror if isinstance(error, OSError) else error}"
    return ""


def again(run: Run) -> Run:
    """Returns the record of the same job, as it stands now."""
    return _seen(_read(_path(run)) or run)


def note_end(job: str, identity: str | None, was: str, kept: "KeptImage | None" = None) -> bool:
    """Notes the end of a job whose supervisor was killed before it could. Raises OSError, UnsafeRuntime.

    Returns False where the supervisor lives, and may write it itself. Without an `identity` the newest job of that name
    is meant. What a supervisor wrote stands. `kept`: the image that the job was stopped into.
    """
    named = (run for run in _ours() if run.job == job and identity in (None, run.id))
    run = max(named, key=lambda run: run.began, default=None)
    if run is None:
        return True
    if run.supervised:
        return False
    run = _read(_path(run)) or run  # its supervisor may have written just before it ended
    end = run.end or End(how=How.UNKNOWN, at=time.time())
    if end.how == How.UNKNOWN and end.was is None:
        image, store = (kept.name, kept.store) if kept else (None, None)
        write(replace(run, end=replace(end, was=was, image=image, store=store)))
    return True


def runs_of(job: str) -> list[Run]:
    """All records of a job's name, newest first; of this daemon's jobs alone."""
    return [run for run in all_runs() if run.job == job]


def all_runs() -> list[Run]:
    """Every record of this daemon's jobs, newest first. An end that no one wrote down is seen here."""
    return sorted(map(_seen, _ours()), key=lambda run: run.began, reverse=True)


def refuse_ended(target: str | int) -> None:
    """Raises NoSuchJob that says how the job of this name or pid ended; for a target without a record nothing."""
    run = next((run for run in all_runs() if target in (run.job, run.pid)), None)
    until = time.monotonic() + _ENDING_S
    while run and not run.is_told and not run.program_lives and time.monotonic() < until:
        time.sleep(_LOOK_S)
        run = again(run)
    if run and run.end:
        ago = units.age(time.time() - run.end.at)
        raise NoSuchJob(f"{run.job} has ended {ago} ago: {run.end.said()}", state=run.end.state, hint=way_back(run))


def way_back(run: Run) -> str:
    """Returns the next command: it restores a job from the image that has it, or lists ended jobs."""
    if run.end and run.end.image and not run.end.moves:
        where = f" --store {shlex.quote(run.end.store)}" if run.end.store else ""
        return f"gcr restore --image {run.end.image}{where}"
    place = left_by(run.job, run.id) if run.end and run.end.how == How.UNKNOWN else None
    return f"gcr restore --image {IMAGE} --store {place.store}" if place else "gcr ps --all"


def _ours() -> Iterator[Run]:
    socket = str(socket_path())
    found = (_read(path) for path in _records())
    return (run for run in found if run is not None and run.socket == socket and run.told)


def prune(most: int) -> None:
    """Remove the records of ended jobs beyond the newest `most`, and old ones, each with its log. Raises OSError."""
    oldest = time.time() - KEEP_S
    by_age = sorted(_records(), key=_changed, reverse=True)
    for place, path in enumerate(by_age):
        run = _read(path) if place >= most or _changed(path) < oldest else None
        if run is not None and not run.lives:
            _remove(path)
    for path in filter(_is_abandoned, listed(folder())):
        path.unlink(missing_ok=True)
    for path in listed(folder(), ".log"):  # of a program that never started
        if not path.with_suffix(_ENDING).exists() and _changed(path) < oldest:
            _remove(path.with_suffix(_ENDING))


def _is_abandoned(path: Path) -> bool:
    """Returns True for a record whose writer has died. A writer in another container cannot be seen from here."""
    unfinished, age = _UNFINISHED.search(path.name), time.time() - _changed(path)
    if unfinished is None or age <= WRITING_S:
        return False
    return age > KEEP_S or processes.start_time(int(unfinished[1])) is None


def _remove(path: Path) -> None:
    for each in (path, path.with_suffix(".log"), path.with_suffix(".log.1")):
        each.unlink(missing_ok=True)


def _records() -> Sequence[Path]:
    return listed(folder(), _ENDING)


def _changed(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _read(path: Path) -> Run | None:
    """Returns the record; None if it is gone, or is no record."""
    try:
        return Run.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("%s is no record of a job: %s", path, error)
        return None


def _seen(run: Run) -> Run:
    """Returns the run with an end. Where no process is left that could write one, this reader does."""
    if run.end is not None or run.lives:
        return run
    run = _read(_path(run)) or run  # its supervisor may have written just before it ended
    if run.end is not None:
        return run
    over = replace(run, end=End(how=How.UNKNOWN, at=time.time()))
    with suppress(OSError, GcrError):
        write(over)
    return over


def _path(run: Run) -> Path:
    return folder() / f"{run.job}.{run.id}{_ENDING}"


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signals.Signals(number).name
    return f"signal {number}"
