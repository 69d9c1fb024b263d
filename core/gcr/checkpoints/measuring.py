"""Measures how fast a store's disk takes saves, for several ways to write them: each trial is a save of random bytes.

They go into a store of their own, in a folder of the same file system. A process that does nothing else removes the
folder when this one has ended, however it ended. The ways take turns, in short trials, since other work disturbs a disk
for seconds at a time. Later rounds are of the fastest ways alone, so that most of the time goes to those.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from msgspec import Struct, field

from gcr.checkpoints.run import Run
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.checkpoints.tuning import Rates
from gcr.errors import NoRoom
from gcr.hashing.chunks import CHUNK_BYTES, TILE_BYTES
from gcr.image.disk.failing import usable
from gcr.image.disk.room import free_bytes
from gcr.memory.hostmemory import available_host_bytes
from gcr.units import size

THREADS = (1, 2, 4, 8)
CHUNKS = (CHUNK_BYTES, 1 << 20, 4 << 20)
ROUNDS = (12, 12, 12, 6, 6, 6, 3, 3, 3, 3)  # how many of the ways each has
TRIAL_S = 0.25
LONGEST_S = 20.0  # in all; a write that has begun ends later
LEAST = 64 << 20  # bytes of a trial, unless a save has fewer
MOST = 512 << 20
FOLDER = "gcr-tune-"  # how the name of the folder begins
_STAMP = 16  # random bytes
_REMOVES = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1])"

Way = tuple[int, int]  # threads and bytes of a chunk


def measured(folder: Path, save_bytes: int, pulse: Callable[[], object] = lambda: None) -> list[Rates]:
    """Writes for some 15 seconds to the disk of a folder, or of the nearest one above it that is there.

    save_bytes: of one save; a trial writes no more · pulse: called whenever something was written
    It is encrypted if the settings name a key. Raises NoRoom for a disk without four times the bytes of a trial,
    StoreUnusable, UnsafeRuntime, KeyUnusable.
    """
    with usable(folder), _scratch(_there(folder)) as scratch:
        return _Trials(Run(scratch / "store", "trial"), save_bytes, pulse).rates()


def _there(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


@contextmanager
def _scratch(beside: Path) -> Iterator[Path]:
    """Yields a new folder. Another process removes it after the block, or when this process has died."""
    made = tempfile.mkdtemp(prefix=FOLDER, dir=beside)
    command = [sys.executable, "-I", "-c", _REMOVES, made]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # its end is awaited
        yield Path(made)


class _Trials(Struct):
    """Trials on one disk. `_memory`: random bytes, as long as the writer is to have them at a time."""

    run: Run
    save_bytes: int
    pulse: Callable[[], object]
    _memory: memoryview = memoryview(b"")
    _found: dict[Way, list[float]] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _made: int = 0

    def rates(self) -> list[Rates]:
        self._fill(min(LEAST, self.save_bytes))
        ways = list(product(THREADS, CHUNKS))
        first = self._written(ways[0])  # also wakes the disk
        self._fill(min(MOST, self.save_bytes, max(LEAST, int(first * TRIAL_S))))
        for count in ROUNDS:
            ways.sort(key=lambda way: -max(self._found.get(way, [0.0])))
            for way in ways[:count]:
                if self._found and time.monotonic() > self._began + LONGEST_S:
                    break
                self._found.setdefault(way, []).append(self._written(way))
        return [Rates(*way, rates) for way, rates in self._found.items()]

    def _fill(self, nbytes: int) -> None:
        """Makes the memory as large as that, or as the host and the disk allow. Raises NoRoom."""
        free = free_bytes(self.run.folder.parent)
        if free is not None and free < 4 * nbytes:
            text = f"the disk has {size(free)} free, and a trial writes {size(nbytes)}"
            raise NoRoom(f"{text}: it is measured only where four times as much is free", missing=4 * nbytes - free)
        nbytes = min(nbytes, max(len(self._memory), available_host_bytes() // 8, TILE_BYTES))
        missing = nbytes - len(self._memory)
        if missing > 0:
            self._memory = memoryview(bytearray(self._memory) + os.urandom(missing))

    def _written(self, way: Way) -> float:
        """Returns bytes a second, until a save of new bytes is durable."""
        threads, chunk = way
        for at in range(0, len(self._memory) - _STAMP, CHUNK_BYTES):
            self._memory[at : at + _STAMP] = os.urandom(_STAMP)
        self._made += 1
        began = time.monotonic()
        saving = Saving(self.run, self._made, chunk)
        try:
            share = write_share(self.run, self._made, [("random", self._memory)], chunk, threads)
            saving.commit([share], b"random", 1, Framework("none", {}))
        finally:
            saving.close()
        took = time.monotonic() - began
        self.run.remove([self._made])
        self.pulse()
        return len(self._memory) / took
