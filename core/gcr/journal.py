"""The journal: one decision record per suspended job. Present, the checkpoint is rolled forward; absent, rolled back.

A record is written to a temporary file, synced, renamed and its directory synced, so that after a crash at any point it
is either wholly there or not at all. A record that does not read back is set aside and reported, never trusted.

    <directory>/<job>.json        {"digest": "<blake2b of the record's JSON>", "record": {…}}
    <directory>/<job>.json.new    being written; left over from a crash, it decides nothing
    <directory>/<job>.damaged-N   set aside
"""

import errno
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Self

from gcr.errors import UsageError
from gcr.listing import listed
from gcr.runtime import own_directory

log = logging.getLogger(__name__)

KINDS = ("checkpoint", "driver", "data_only", "restored")  # restored: decided to run again, gates still opening
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError)
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z|[0-9]+\Z")  # a job, or a pid for a process not started by gcr


@dataclass(frozen=True, slots=True)
class ProcessDecision:
    """One process of the job. By device (UUID): `bytes` of its data, `ballast` the driver needs for itself."""

    pid: int
    start_time: int
    bytes: Mapping[str, int]
    ballast: Mapping[str, int]
    copied_out: bool = False  # by its own agent, strategy `copyout`
    now: Mapping[str, str] = field(default_factory=dict)  # other devices where its control state is; see placement.py
    tried: Mapping[str, str] | None = None  # those where a restore that was begun may have brought it
    stack: int = 0  # see ProcessIdentity


@dataclass(frozen=True, slots=True)
class KeptImage:
    """Which image alone has a job's bytes, and in which store, by its whole path."""

    store: str
    name: str
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The job is suspended from here on. `decided_at`: seconds since the epoch. Raises UsageError for a bad name.

    `environment`: what leads a worker to the job's (simulated) driver.
    `image`: where its bytes are, if they are in no host memory.
    """

    job: str
    transaction: int
    kind: str
    decided_at: float
    processes: tuple[ProcessDecision, ...]
    backend: str
    simulated: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    image: KeptImage | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.job) or self.kind not in KINDS:
            raise UsageError(f"no decision record for job {self.job!r}, kind {self.kind!r}")

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or UsageError for what is no record."""
        kept = body.get("image")
        facts = {"processes": tuple(ProcessDecision(**each) for each in body["processes"])}
        return cls(**{**body, **facts, "image": KeptImage(**kept) if kept else None})


class Journal:
    """Thread-safe; one process at a time owns the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = own_directory(directory)
        self._lock = Lock()

    def decide(self, record: DecisionRecord) -> None:
        """When this returns the decision outlives a crash of anything. Raises OSError; then what was decided stands.

        Should syncing the directory fail after the rename, the job's earlier record, or none, is put back before the
        error goes out.
        """
        with self._lock:
            self._decide(record)

    def amend(self, job: str, change: Callable[[DecisionRecord], DecisionRecord]) -> None:
        """Decide anew, from the record that stands. Raises OSError, also where there is none."""
        with self._lock:
            path = self._path(job)
            record = self._read(path) if path.exists() else None
            if record is None:
                raise FileNotFoundError(errno.ENOENT, "the record of what was decided is gone", str(path))
            self._decide(change(record))

    def _decide(self, record: DecisionRecord) -> None:
        path = self._path(record.job)
        before = path.read_bytes() if path.exists() else None
        _replace_synced(path, _to_bytes(record))
        try:
            self._sync_directory()
        except BaseException:
            _put_back(path, before)
            raise

    def forget(self, job: str) -> None:
        """The job runs again, or has ended. Raises OSError."""
        with self._lock:
            self._path(job).unlink(missing_ok=True)
            self._sync_directory()

    def records(self) -> Sequence[DecisionRecord]:
        """Every decision that stands, by job. Leftovers are removed; what does not read back is set aside.

        Raises OSError.
        """
        with self._lock:
            for leftover in listed(self._directory, ".json.new"):
                leftover.unlink()
            found = (self._read(path) for path in listed(self._directory, ".json"))
            return [record for record in found if record is not None]

    def damaged(self) -> Sequence[Path]:
        """Records that were set aside: whoever looks after the jobs they name must ask the driver instead."""
        return [path for path in listed(self._directory) if ".damaged-" in path.name]

    def _read(self, path: Path) -> DecisionRecord | None:
        try:
            record = _from_bytes(path.read_bytes())
            if record.job == path.stem:
                return record
            reason = f"it is the record of {record.job}"
        except _UNREADABLE as error:
            reason = str(error)
        aside = next(p for n in count(1) if not (p := path.with_name(f"{path.stem}.damaged-{n}")).exists())
        path.rename(aside)
        log.error("job %s: its decision record does not read back (%s); kept as %s", path.stem, reason, aside)
        return None

    def _path(self, job: str) -> Path:
        if not _NAME.match(job):
            raise UsageError(f"{job!r} is not the name of a job")
        return self._directory / f"{job}.json"

    def _sync_directory(self) -> None:
        _with_fd(self._directory, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def standing(directory: Path) -> Sequence[DecisionRecord]:
    """Every decision that reads back, for whoever only looks: the directory is another process's. Raises OSError."""
    found: list[DecisionRecord] = []
    for path in listed(directory, ".json"):
        with suppress(*_UNREADABLE, FileNotFoundError):  # it may go meanwhile; what is damaged is the daemon's to say
            found.append(_from_bytes(path.read_bytes()))
    return found


def _to_bytes(record: DecisionRecord) -> bytes:
    body = asdict(record)
    return json.dumps({"digest": _digest(body), "record": body}, indent=1).encode()


def _from_bytes(text: bytes) -> DecisionRecord:
    body = json.loads(text)
    if body["digest"] != _digest(body["record"]):
        raise ValueError("the digest is wrong")
    return DecisionRecord.from_json(body["record"])


def _digest(body: object) -> str:
    return blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=32, person=b"gcr journal").hexdigest()


def _replace_synced(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path`: whole, or not at all."""
    fresh = path.with_name(path.name + ".new")
    try:
        _with_fd(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, lambda fd: _write_synced(fd, content))
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _write_synced(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fsync(fd)


def _put_back(path: Path, before: bytes | None) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        _replace_synced(path, before)


def _with_fd(path: Path, flags: int, use: Callable[[int], object]) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        use(fd)
    finally:
        os.close(fd)
