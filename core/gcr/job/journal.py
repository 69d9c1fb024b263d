"""The journal: one decision record per suspended job. Present, the checkpoint is rolled forward; absent, rolled back.

A record is written to a temporary file and renamed, so that it is wholly there or not at all, whichever process
dies at any point. A copy of it follows. The daemon that decided keeps its records in memory as well, and writes again
those that others remove or damage. A record of which neither file reads back is set aside and reported, never trusted.

    <directory>/<job>.json        {"digest": "<blake2b of the record's JSON>", "record": {…}}: the decision
    <directory>/<job>.copy        the same; read where the first is damaged or gone
    <directory>/<job>.json.new    being written; left over from a crash, it decides nothing
    <directory>/<job>.intent      what is about to be decided, once its image is durable; read where no record stands
    <directory>/<job>.damaged-N   set aside; removed when the job is forgotten

A decision is about processes, which end with the machine. So nothing is synced to the disk while a program stands
still, but for a record that says in which image the job's bytes are: the image outlives a reboot.
"""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Lock

from msgspec import Struct

from gcr.errors import UsageError
from gcr.job.decisions import JOB_OR_PID, UNREADABLE, DecisionRecord, of_text, text_of
from gcr.listing import listed
from gcr.runtime import own_directory

log = logging.getLogger(__name__)


class Journal:
    """Thread-safe; one process at a time owns the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = own_directory(directory)
        self._lock = Lock()
        self._known: dict[str, DecisionRecord] = {}  # what stands, by job
        self._over: set[str] = set()  # jobs without a valid record, though the disk still has one

    def decide(self, record: DecisionRecord) -> None:
        """Records a decision; it outlives any process. Raises OSError; then the former decision stands.

        Should syncing the directory fail after the rename, the job's earlier record, or none, is put back before the
        error goes out.
        """
        with self._lock:
            self._decide(record)

    def intend(self, record: DecisionRecord) -> None:
        """Records an intent: the decision that follows once its image is durable. Raises OSError."""
        with self._lock:
            own_directory(self._directory)
            _replace(_intent_of(self._path(record.job)), text_of(record), synced=False)

    def intended(self, job: str) -> DecisionRecord | None:
        """Returns the intent that a dead daemon left; None also where it does not read back. Raises OSError."""
        return _intended_in(_intent_of(self._path(job)), job)

    def give_up(self, job: str) -> None:
        """Removes the intent. Raises OSError."""
        _intent_of(self._path(job)).unlink(missing_ok=True)

    def amend(self, job: str, change: Callable[[DecisionRecord], DecisionRecord]) -> None:
        """Decide anew, from the record that stands. Raises OSError, also where there is none."""
        with self._lock:
            record = self._standing(job)
            if record is None:
                raise FileNotFoundError(errno.ENOENT, "the record of what was decided is gone", str(self._path(job)))
            self._decide(change(record))

    def record(self, job: str) -> DecisionRecord | None:
        """Returns the decision that stands for a job. Raises OSError."""
        with self._lock:
            return self._standing(job)

    def _standing(self, job: str) -> DecisionRecord | None:
        return None if job in self._over else self._known.get(job) or self._read(job)

    def _decide(self, record: DecisionRecord) -> None:
        own_directory(self._directory)
        path, content = self._path(record.job), text_of(record)
        before, synced = self._known.get(record.job), record.image is not None
        _copy_of(path).unlink(missing_ok=True)  # never older than the decision
        _replace(path, content, synced)
        try:
            if synced:
                self._sync_directory()
        except BaseException:
            self._take_back(record.job, before)
            raise
        self._known[record.job] = record
        self._over.discard(record.job)
        _write_copy(path, content)
        with suppress(OSError):  # beside a decision it means nothing
            self.give_up(record.job)

    def _take_back(self, job: str, before: DecisionRecord | None) -> None:
        """Takes back a failed decision. If the disk fails again, its record is ignored until `mend` corrects it."""
        path = self._path(job)
        try:
            if before is None:
                path.unlink(missing_ok=True)
            else:
                _replace(path, text_of(before), synced=False)
                _write_copy(path, text_of(before))
        except OSError as error:
            log.warning("job %s: a decision that failed is still on the disk, and is taken back later: %s", job, error)
            if before is None:
                self._over.add(job)

    def forget(self, job: str) -> None:
        """The job runs again, or has ended. A record that the disk does not let go is removed later, by `mend`.

        A successor that reads it before finds the gates of its processes open, or no such process, and forgets it.
        """
        try:
            self.remove(job)
        except OSError as error:
            log.warning("job %s: its decision record is over, and is removed later: %s", job, error)
            with self._lock:
                self._known.pop(job, None)
                self._over.add(job)

    def remove(self, job: str) -> None:
        """Raises OSError; then what was decided stands."""
        path = self._path(job)
        with self._lock:
            self._remove(job, path)

    def _remove(self, job: str, path: Path) -> None:
        _copy_of(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        self.give_up(job)
        self._known.pop(job, None)
        self._over.discard(job)
        for damaged in self._damaged_of(job):
            damaged.unlink(missing_ok=True)

    def records(self) -> Sequence[DecisionRecord]:
        """Every decision that stands, by job. Leftovers are removed; what does not read back is set aside.

        Raises OSError.
        """
        with self._lock:
            for leftover in (*listed(self._directory, ".json.new"), *listed(self._directory, ".copy.new")):
                leftover.unlink()
            found = {job: self._read(job) for job in _jobs_in(self._directory)}
            self._known |= {job: record for job, record in found.items() if record is not None}
            return [self._known[job] for job in sorted(self._known)]

    def mend(self) -> None:
        """Write again what stands and was removed, or damaged, by another; remove what is over.

        Raises OSError, UnsafeRuntime.
        """
        with self._lock:
            for job in [*self._over]:
                self._remove(job, self._path(job))
            for job, record in self._known.items():
                path, content = self._path(job), text_of(record)
                if not (_holds(path, content) and _holds(_copy_of(path), content)):
                    log.warning("job %s: its decision record was removed or changed by another; written again", job)
                    own_directory(self._directory)
                    _replace(path, content, synced=False)
                    _write_copy(path, content)

    def damaged(self) -> Sequence[Path]:
        """Records that were set aside: for the jobs they name, recovery must ask the driver instead."""
        return [path for path in listed(self._directory) if ".damaged-" in path.name]

    def _damaged_of(self, job: str) -> Sequence[Path]:
        return [path for path in self.damaged() if path.name.startswith(f"{job}.damaged-")]

    def _read(self, job: str) -> DecisionRecord | None:
        """Reads from the disk; the copy where the first does not read back."""
        path = self._path(job)
        for each in (path, _copy_of(path)):
            try:
                return _record_in(each, job)
            except FileNotFoundError:
                continue
            except UNREADABLE as error:
                self._set_aside(each, job, error)
        return None

    def _set_aside(self, path: Path, job: str, error: Exception) -> None:
        aside = next(p for n in count(1) if not (p := path.with_name(f"{job}.damaged-{n}")).exists())
        path.rename(aside)
        log.error("job %s: its decision record does not read back (%s); kept as %s", job, error, aside)

    def _path(self, job: str) -> Path:
        if not JOB_OR_PID.match(job):
            raise UsageError(f"{job!r} is not the name of a job")
        return self._directory / f"{job}.json"

    def _sync_directory(self) -> None:
        _with_fd(self._directory, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


class Standing(Struct, frozen=True):
    """The contents of a journal: decisions, and jobs of which there was one that does not read back.

    intended: what a daemon that died was about to decide.
    """

    records: Sequence[DecisionRecord]
    unreadable: frozenset[str]
    intended: Sequence[DecisionRecord] = ()


def standing(directory: Path) -> Standing:
    """Reads the journal of a daemon for a process that only looks; it may be missing. Raises OSError."""
    found: dict[str, DecisionRecord] = {}
    if not directory.exists():
        return Standing((), frozenset())
    damaged = {path.name.rpartition(".damaged-")[0] for path in listed(directory) if ".damaged-" in path.name}
    for job in _jobs_in(directory):
        for path in (directory / f"{job}.json", directory / f"{job}.copy"):
            with suppress(FileNotFoundError):  # it may go meanwhile
                try:
                    found.setdefault(job, _record_in(path, job))
                except UNREADABLE:
                    damaged.add(job)
    read = (_intended_in(path, path.stem) for path in listed(directory, ".intent"))
    intended = [each for each in read if each and each.job not in found]
    return Standing([*found.values()], frozenset(damaged - found.keys()), intended)


def _jobs_in(directory: Path) -> Sequence[str]:
    return sorted({path.stem for suffix in (".json", ".copy") for path in listed(directory, suffix)})


def _record_in(path: Path, job: str) -> DecisionRecord:
    """Raises OSError, and one of UNREADABLE for a file that is no record of the job."""
    record = of_text(path.read_bytes())
    if record.job != job:
        raise ValueError(f"it is the record of {record.job}")
    return record


def _intended_in(path: Path, job: str) -> DecisionRecord | None:
    try:
        return _record_in(path, job)
    except (FileNotFoundError, *UNREADABLE):
        return None


def _copy_of(path: Path) -> Path:
    return path.with_suffix(".copy")


def _intent_of(path: Path) -> Path:
    return path.with_suffix(".intent")


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def _write_copy(path: Path, content: bytes) -> None:
    """Writes the copy; the decision stands without it, so an error is only logged."""
    try:
        _replace(_copy_of(path), content, synced=False)
    except OSError as error:
        log.warning("the copy of %s was not written: %s", path, error)


def _replace(path: Path, content: bytes, synced: bool) -> None:
    """Put `content` in the place of `path`: whole, or not at all."""
    fresh = path.with_name(path.name + ".new")
    try:
        _with_fd(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, lambda fd: _write(fd, content, synced))
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _write(fd: int, content: bytes, synced: bool) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    if synced:
        os.fsync(fd)


def _with_fd(path: Path, flags: int, use: Callable[[int], object]) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        use(fd)
    finally:
        os.close(fd)
