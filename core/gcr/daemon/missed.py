"""Changes of an escrow that its supervisor has not heard of, so that no daemon takes older memory from there.

A restored process has new memory under the ids of before. A supervisor that is away meanwhile goes on holding the old
memory under the same ids. So the daemon writes down what the supervisor misses before it changes its own escrow:

    <daemon's folder>/missed/<pid>        a line each: an id, or "all"

Before this daemon, or the next one, asks the supervisor about that process, the supervisor lets go of these ids.
A supervisor lets go of processes that have ended by itself.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from gcr.listing import listed
from gcr.runtime import own_directory

log = logging.getLogger("gcr.daemon")

ALL = "all"
FOLDER = "missed"


class Missed:
    """Thread-safe; of the daemon that has the folder. Without a folder nothing is left to the next daemon."""

    def __init__(self, folder: Path | None = None) -> None:
        self._directory = folder / FOLDER if folder else None
        self._lock = Lock()
        self._telling: dict[int, Lock] = {}  # by pid; before `_lock`
        self._ids: dict[int, set[int] | None] = dict(_read(self._directory)) if self._directory else {}

    def add(self, pid: int, ids: Sequence[int] | None) -> None:
        """Records that the supervisor does not hear of a change of these handles; None: of any. Raises OSError."""
        with self._lock:
            known = self._ids.get(pid, set())
            if known is None or (ids is not None and known.issuperset(ids)):
                return
            self._append(pid, [ALL] if ids is None else map(str, sorted({*ids} - known)))
            self._ids[pid] = None if ids is None else known | {*ids}

    def told(self, pid: int, drop: Callable[[int, Sequence[int] | None], object]) -> None:
        """Has the supervisor drop what it has missed, if anything. Raises what `drop` raises; then it is still due."""
        if pid not in self._ids:
            return
        with self._one(pid), self._lasting(pid) as due:
            if due != []:
                drop(pid, due)

    def forget(self, pid: int) -> None:
        """Removes the record of a process that has ended."""
        with self._lock:
            self._forget(pid)

    def mend(self) -> None:
        """Writes again what another removed. Raises OSError, UnsafeRuntime."""
        with self._lock:
            for pid, ids in self._ids.items():
                if self._directory and not (self._directory / str(pid)).exists():
                    self._append(pid, [ALL] if ids is None else map(str, sorted(ids)))

    @contextmanager
    def _lasting(self, pid: int) -> Iterator[list[int] | None]:
        """Yields what is due; [] for nothing. What was added within the block stays due."""
        with self._lock:
            before = self._ids.get(pid, set())
            due = None if before is None else sorted(before)
        yield due
        with self._lock:
            if self._ids.get(pid, set()) == before:
                self._forget(pid)

    def _forget(self, pid: int) -> None:
        """Removes the record; one that stays only has the supervisor drop more than it must."""
        if self._ids.pop(pid, self) is self or self._directory is None:
            return
        try:
            (self._directory / str(pid)).unlink(missing_ok=True)
        except OSError as error:
            log.warning("a record of handles that a supervisor missed stays: %s", error)

    def _append(self, pid: int, lines: Iterable[str]) -> None:
        if self._directory is None:
            return
        own_directory(self._directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._directory / str(pid), flags, 0o600), "w") as file:
            file.write("".join(f"\n{line}" for line in lines) + "\n")  # first: an earlier line may have been cut short

    def _one(self, pid: int) -> Lock:
        with self._lock:
            return self._telling.setdefault(pid, Lock())


def _read(directory: Path) -> Iterator[tuple[int, set[int] | None]]:
    """Raises OSError."""
    for path in listed(directory) if directory.exists() else ():
        if path.name.isdecimal():
            yield int(path.name), _ids_of(path.read_text(errors="replace"))


def _ids_of(text: str) -> set[int] | None:
    """Returns None, for all ids, also where a line was cut short or damaged."""
    lines = text.split()
    whole = text.endswith("\n") and all(line.isdecimal() for line in lines)
    return {*map(int, lines)} if whole else None
