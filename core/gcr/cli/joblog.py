"""The output of a detached job, read while it grows. The file is begun anew when it is full; one older part is kept."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gcr.errors import NoOutput
from gcr.job.runs import Run

PIECE = 1 << 20


class JobLog:
    """The log of a job, and how far it has been read."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log

    @classmethod
    def of(cls, run: Run) -> "JobLog":
        """Opens the log of a run, at its beginning. Raises NoOutput."""
        if run.log is None:
            text = f"{run.job} was not detached: its output is where `gcr run` was started"
            raise NoOutput(text, hint=f"gcr run -d --name {run.job}, another time")
        try:
            return cls(Path(run.log).open("rb"))
        except FileNotFoundError:
            raise NoOutput(f"the log of {run.job} is gone: {run.log}") from None

    @property
    def path(self) -> str:
        return self._log.name

    def whole(self) -> bytes:
        """Returns all that is kept, the older part first."""
        return self._before() + self._log.read()

    def skip(self) -> None:
        """Passes over what is there."""
        self._log.seek(0, os.SEEK_END)

    def fresh(self) -> Iterator[bytes]:
        """Yields the bytes that came since, also across the moment at which the file was begun anew."""
        seen = self._log.tell()
        if os.fstat(self._log.fileno()).st_size < seen:
            yield self._before(seen)
            self._log.seek(0)
        while piece := self._log.read(PIECE):
            yield piece

    def close(self) -> None:
        self._log.close()

    def _before(self, at: int = 0) -> bytes:
        """The older part of the output, from a place in it on; nothing where the log was never full."""
        try:
            with Path(f"{self.path}.1").open("rb") as older:
                older.seek(at)
                return older.read()
        except FileNotFoundError:
            return b""
