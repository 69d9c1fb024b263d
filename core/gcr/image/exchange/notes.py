"""Notes of a pull: which runs of an unfinished pack it has compared, so that this node's exchange offers them already.

    packs/<id>.pack.runs    seal of the pack (32) | a random number (16) | begin (u64), bytes (u64) of each run, in the
                            order in which they came; little-endian

A run is noted once its bytes are in the file. The notes are new for each pull, locked before their first byte, and go
with the pull. So the runs in locked notes are right, also after a crash of the machine. Notes that are not locked count
for nothing.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

from gcr.image.chunks.chunk import NAME_BYTES
from gcr.image.disk.locking import is_named
from gcr.image.disk.regular import bytes_at, open_file
from gcr.image.exchange.spans import Spans
from gcr.imageerrors import Damaged

Run = tuple[int, int]  # begin, bytes
_RUN = Struct("<QQ")
_LIFE_BYTES = 16
_HEAD_BYTES = NAME_BYTES + _LIFE_BYTES
_AT_ONCE = 1 << 14  # runs that are read at once


class Notes:
    """The notes that a pull writes; it alone has the pack's unfinished file. Everything raises OSError."""

    def __init__(self, path: Path, seal: bytes) -> None:
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._path, self._fd = path, os.open(path, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # a reader that looks at the lock has it for an instant
        os.write(self._fd, seal + os.urandom(_LIFE_BYTES))

    def add(self, at: int, size: int) -> None:
        """Notes a run. A disk that takes a part of the note fails: what follows could not be read."""
        if os.write(self._fd, _RUN.pack(at, size)) < _RUN.size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


class Noted:
    """The notes of a pull that another process reads. The caller closes them; no two threads use one at once."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError, Damaged for what are no notes, OSError."""
        self._path, self._fd = path, open_file(path)
        head = bytes_at(self._fd, 0, _HEAD_BYTES)
        if len(head) != _HEAD_BYTES:
            os.close(self._fd)
            raise Damaged.of(path, "it has no head")
        self.seal, self.life = bytes(head[:NAME_BYTES]), bytes(head[NAME_BYTES:]).hex()
        self._spans, self._read = Spans(), 0

    def close(self) -> None:
        os.close(self._fd)

    def are_kept(self) -> bool:
        """Returns whether the pull is at work."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return is_named(self._fd, self._path)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def runs(self, first: int, most: int) -> Sequence[Run]:
        """Returns up to `most` runs, from the number `first` on."""
        found = bytes_at(self._fd, _HEAD_BYTES + first * _RUN.size, most * _RUN.size)
        whole = len(found) // _RUN.size * _RUN.size
        return [(at, size) for at, size in _RUN.iter_unpack(found[:whole])]

    def cover(self, at: int, size: int) -> bool:
        """Returns whether these bytes were compared."""
        while some := self.runs(self._read, _AT_ONCE):
            for begin, length in some:
                self._spans.add(begin, begin + length)
            self._read += len(some)
        return self._spans.covers(at, at + size)
