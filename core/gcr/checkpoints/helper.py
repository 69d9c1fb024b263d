"""Writes the shares of this process's saves in a process of its own, so that hashing and writing cost it nothing.

Threads of this process would take turns with it at the interpreter's lock: steps of a training took twice as long.
"""

import io
import logging
import os
import socket
import subprocess
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ctypes import Array, addressof
from pathlib import Path
from threading import Event, Lock, Thread

import gcr
from gcr.checkpoints.operations import LendRegion, Placed, Ready, WriteShare
from gcr.checkpoints.region import Region
from gcr.checkpoints.run import Run
from gcr.checkpoints.saving import write_share
from gcr.checkpoints.share import DEFAULT_CHUNK_BYTES, THREADS, File, Share
from gcr.errors import DeadlinePassed, GcrError, PeerGone
from gcr.image.crypto.key import KeySource
from gcr.image.pack.pace import Packing
from gcr.protocol.batches import batches
from gcr.protocol.channel import Channel
from gcr.protocol.operations.operation import ask
from gcr.rendezvous.launch import daemon_environment, start_module

log = logging.getLogger("gcr.torch")

WORTH_BYTES = 64 << 20  # while there is no helper a smaller share is written here, within the time of its start
START_S, LEND_S, END_S = 30.0, 30.0, 5.0
WRITE_S = 7 * 86400.0  # a store may be slow; its own errors end a write that hangs
LOOK_S, ANSWER_S = 30.0, 30.0  # while it writes: one that does not answer twice is killed, since it may be stopped


class SaveHelper:
    """A save helper of this process, which is started for the first share that is worth it. Thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._lock, self._pid = Lock(), 0
        self._cannot_start = False

    def write(
        self,
        regions: Sequence[Region],
        run: Run,
        step: int,
        files: Iterable[File],
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        threads: int = THREADS,
        going: Collection[str] = (),
        packing: Packing = "plain",
    ) -> Share:
        """Writes files as `write_share` does. regions: in which files of arrays lie; others are copied.

        This process compresses nothing: a share that is to be compressed starts a helper whatever its size.
        Raises PeerGone if the helper ends; the next share has another one. Else as `write_share`.
        """
        found = list(files)
        is_worth = packing == "compressed" or sum(len(data) for _, data in found) >= WORTH_BYTES
        if not self._lives and not is_worth:
            return write_share(run, step, found, chunk_bytes, threads, going)
        with self._lock:
            if (channel := self._started()) is None:
                return write_share(run, step, found, chunk_bytes, threads, going)
            try:
                with self._watched(channel):
                    return _asked(channel, Places(regions, found), run, step, chunk_bytes, threads, going, packing)
            except PeerGone as gone:
                raise PeerGone(f"the save helper {self._ended()}") from gone

    @contextmanager
    def _watched(self, channel: Channel) -> Iterator[None]:
        """Kills the helper if it does not answer within the block."""
        over, process = Event(), self._process
        Thread(target=_watch, args=(channel, process, over), name="gcr-save-helper", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    @property
    def _lives(self) -> bool:
        there, channel = self._process, self._channel
        return bool(there and there.poll() is None and channel and not channel.closed.is_set())

    def _started(self) -> Channel | None:
        """Returns the channel of the helper; None where none can be started, which is logged once."""
        if self._lives:
            return self._channel
        self._end()
        if self._cannot_start:
            return None
        try:
            self._start()
        except (GcrError, OSError) as error:
            self._end()
            self._cannot_start = True
            log.warning("saves are written by the training's own process: no save helper starts: %s", error)
        return self._channel

    def _start(self) -> None:
        """Raises OSError; PeerGone, DeadlinePassed for a helper that does not serve."""
        with ExitStack() as unless_started:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            unless_started.enter_context(ours)
            self._pid = os.getpid()
            with theirs:
                arguments = [str(os.getpid()), str(theirs.fileno())]
                self._process = start_module("gcr.save_helper", arguments, _environment(), theirs.fileno())
            unless_started.pop_all()
        self._channel = Channel(ours, name=f"save helper {self._process.pid}").start()
        ask(self._channel, Ready(), timeout=START_S)

    def _ended(self) -> str:
        """Returns in words how the helper ended."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_S) if self._process else 0
            return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return "does not answer"

    def _end(self) -> None:
        """Ends the helper; in a child that was forked meanwhile it is only forgotten."""
        if self._channel and self._pid == os.getpid():
            self._channel.close()
        if self._process and self._pid == os.getpid():
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # a disk that hangs may hold it for longer
                self._process.wait(END_S)
        self._channel = self._process = None

    def close(self) -> None:
        """Ends the helper. Another write starts another one."""
        with self._lock:
            self._end()


def _watch(channel: Channel, process: "subprocess.Popen[bytes] | None", over: Event) -> None:
    missed = 0
    while process and missed < 2 and not over.wait(0.0 if missed else LOOK_S):
        try:
            ask(channel, Ready(), timeout=ANSWER_S)
            missed = 0
        except DeadlinePassed:
            missed += 1
        except GcrError:
            return  # it has ended
    if process and not over.is_set():
        log.warning("the save helper, process %d, does not answer: it is killed", process.pid)
        process.kill()


class Places:
    """Files by where they lie in regions. `regions`: those that have files, and one of copies of all other bytes."""

    def __init__(self, regions: Sequence[Region], files: Sequence[File]) -> None:
        """Raises OSError, where there is no memory for the copies."""
        self._sorted = sorted(regions, key=lambda region: region.first)
        self._firsts = [region.first for region in self._sorted]
        there = [self._place(data) for _, data in files]
        loose = [data for (_, data), place in zip(files, there, strict=True) if place is None]
        self.regions = [*self._sorted, *_copied(loose)]
        offsets = _offsets(loose)
        copies = len(self._sorted)
        self.placed: list[Placed] = [
            (name, *(place if place else (copies, next(offsets))), len(data))
            for (name, data), place in zip(files, there, strict=True)
        ]

    def _place(self, data: memoryview) -> tuple[int, int] | None:
        """Returns number of the region and offset there; None for bytes that lie elsewhere."""
        if not isinstance(data.obj, Array) or data.nbytes != len(data.obj):
            return None
        address = addressof(data.obj)
        number = bisect(self._firsts, address) - 1
        offset = self._sorted[number].offset_of(address, len(data)) if number >= 0 else None
        return None if offset is None else (number, offset)


def _offsets(loose: Sequence[memoryview]) -> Iterator[int]:
    at = 0
    for data in loose:
        yield at
        at += len(data)


def _copied(loose: Sequence[memoryview]) -> Iterator[Region]:
    """Yields a region with these bytes one behind the other, if there are any. Writing a file leaves the lock free."""
    if not (total := sum(map(len, loose))):
        return
    region = Region.made(total)
    with io.FileIO(region.fds[0], "wb", closefd=False) as out:
        for data in loose:
            while data:
                data = data[out.write(data) :]
    yield region


def _asked(
    channel: Channel,
    places: Places,
    run: Run,
    step: int,
    chunk_bytes: int,
    threads: int,
    going: Collection[str],
    packing: Packing,
) -> Share:
    for number, region in enumerate(places.regions):
        _lend(channel, number, region)
    with KeySource.chosen().lent() as key:
        place = (str(run.folder), bool(key), run.image(step))
        asked = WriteShare(*place, chunk_bytes, threads, tuple(places.placed), tuple(going), packing)
        return ask(channel, asked, key, timeout=WRITE_S)[0]


def _lend(channel: Channel, number: int, region: Region) -> None:
    for offset, part in batches(region.fds):
        sizes = tuple(region.sizes[offset : offset + len(part)])
        asked = LendRegion(number, region.nbytes, sizes, offset, len(region.fds))
        ask(channel, asked, part, timeout=LEND_S)


def _environment() -> dict[str, str]:
    """Returns the helper's environment: it imports the gcr that this process has."""
    found, here = daemon_environment(), str(Path(gcr.__file__).parents[1])
    found["PYTHONPATH"] = os.pathsep.join([*filter(None, [found.get("PYTHONPATH")]), here])
    return found
