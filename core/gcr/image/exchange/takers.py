"""Processes that take bytes of packs from peers for one pull: a processor each, without a common Python lock.

They write into memory that the pull shares with them, so no byte is copied once more, and the pull compares and writes
the bytes as those that it read itself. A taker that ends leaves its requests to the pull.
"""

import asyncio
import logging
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count

from gcr.exchangeerrors import PeerUnusable
from gcr.image.disk.bounce import address_of
from gcr.image.disk.room import empty
from gcr.image.exchange.address import PeerAddress, Trust
from gcr.image.exchange.fetching import MOST_PACKET, Begin, Drop, Fetch, Fetched, Moving, Ready, from_taker, packed
from gcr.image.exchange.lines import NotSent

log = logging.getLogger(__name__)

SLOT = 8 << 20  # bytes; a larger piece is one large chunk, which the pull reads itself
_SLOTS = 64  # the system gives memory only to those that were written
_MOST = 8  # takers: each takes 1 GB/s and more
_END_S = 5.0


class TakerGone(Exception):
    """The taker has ended, or does not listen."""


def how_many() -> int:
    """Returns the number of takers that are worth their start: half of the processors, the others compare and write."""
    return min(_MOST, len(os.sched_getaffinity(0)) // 2)


class Memory:
    """Shared memory in slots of SLOT bytes. Slots that are given back are given out first: they are in memory."""

    def __init__(self) -> None:
        """Raises OSError."""
        self.bytes = SLOT * _SLOTS
        self.fd = os.memfd_create("gcr-pieces", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, self.bytes)
            self._map = mmap.mmap(self.fd, self.bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._all = memoryview(self._map)
        self._begin = address_of(self._all)
        self._free = [*range(_SLOTS - 1, -1, -1)]

    def slot(self, size: int) -> memoryview | None:
        """Returns memory for a piece, None if there is none for so large a piece."""
        if size > SLOT or not self._free:
            return None
        at = self._free.pop() * SLOT
        return self._all[at : at + size]

    def free(self, slot: memoryview) -> None:
        """Takes a slot back that no process writes to any more. Thread-safe."""
        self._free.append(self.at(slot) // SLOT)

    def at(self, slot: memoryview) -> int:
        return address_of(slot) - self._begin

    def close(self) -> None:
        """Gives the memory back to the system. Slots that are still in use have zeros from now on."""
        with suppress(OSError):
            empty(self.fd, self.bytes)
        os.close(self.fd)


class _Asked:
    """A request that a taker has."""

    def __init__(self, slot: memoryview, moved: Callable[[], object]) -> None:
        self.slot, self.moved = slot, moved
        self.answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()


class _Taker:
    """One taker, as the pull sees it. All calls within one event loop."""

    def __init__(self, begin: Begin, memory: Memory) -> None:
        """Raises OSError."""
        self.ready = False
        self.asked: dict[int, _Asked] = {}
        self._memory, self._numbers, self._loop = memory, count(1), asyncio.get_running_loop()
        with ExitStack() as unless_started:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            unless_started.callback(self._channel.close)
            with theirs:
                self._process = _started(theirs.fileno(), memory.fd)
            unless_started.callback(self._kill)
            self._channel.setblocking(False)
            self._channel.send(packed(begin))
            unless_started.pop_all()
        self._loop.add_reader(self._channel, self._heard)

    async def fetch(self, peer: int, path: str, headers: Mapping[str, str], asked: _Asked) -> None:
        """Fills the slot. Frees it where that fails, once the taker does not write to it any more.

        Raises NotSent, PeerUnusable; TakerGone, after which the slot is not used again.
        """
        number = next(self._numbers)
        self.asked[number] = asked
        size, at = len(asked.slot), self._memory.at(asked.slot)
        self._say(Fetch(number=number, peer=peer, path=path, headers=headers, at=at, size=size))
        try:
            answer = await asyncio.shield(asked.answer)
        except asyncio.CancelledError:
            asked.answer.add_done_callback(lambda done: self._dropped(asked, done))
            if not asked.answer.done():
                self._say(Drop(number))
            raise
        if answer.refused:
            self._memory.free(asked.slot)
            raise NotSent(answer.refused) if answer.hint is None else PeerUnusable(answer.refused, hint=answer.hint)

    def _dropped(self, asked: _Asked, done: "asyncio.Future[Fetched]") -> None:
        if not done.cancelled() and not done.exception():
            self._memory.free(asked.slot)

    def _say(self, message: Fetch | Drop) -> None:
        try:
            self._channel.send(packed(message))
        except OSError as error:
            self._lose(error)

    def _heard(self) -> None:
        try:
            while packet := self._channel.recv(MOST_PACKET):
                self._take(packet)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:  # ValueError: this is no message of a taker
            self._lose(error)
            return
        self._lose(EOFError("it has ended"))

    def _take(self, packet: bytes) -> None:
        match from_taker.decode(packet):
            case Ready():
                self.ready = True
            case Moving(number):
                if (asked := self.asked.get(number)) and not asked.answer.done():
                    asked.moved()
            case Fetched(number) as answer:
                self.asked.pop(number).answer.set_result(answer)

    def _lose(self, error: Exception) -> None:
        """Kills the taker; its requests raise TakerGone."""
        log.warning("a process that takes bytes of an image has ended: %s", error)
        self.end()
        self.wait()
        asked, self.asked = self.asked, {}
        for each in asked.values():
            each.answer.set_exception(TakerGone(str(error)))

    def end(self) -> None:
        """Kills the taker, and does not wait for its end."""
        self.ready = False
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            self._process.kill()

    def wait(self) -> None:
        """Waits for the end of the killed process, on any thread."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)

    def _kill(self) -> None:
        self._process.kill()
        self.wait()

    def give_up(self) -> None:
        for each in self.asked.values():
            each.answer.cancel()


class Takers:
    """All takers of one pull, `number` of them. All calls within one event loop, but for `memory.free`."""

    def __init__(
        self, peers: Sequence[PeerAddress], token: str | None, trust: Trust, number: int, lines: int = 0
    ) -> None:
        """`lines`: connections to the first peer that each makes at once. Raises OSError."""
        self.memory, self.number = Memory(), number
        begin = Begin(peers=peers, token=token, trust=trust, bytes=self.memory.bytes, lines=lines)
        self._all = list[_Taker]()
        self._peers = {address: number for number, address in enumerate(peers)}
        try:
            for _ in range(number):
                self._all.append(_Taker(begin, self.memory))
        except BaseException:
            self.close()
            raise

    @property
    def are_ready(self) -> bool:
        """Returns whether one has started."""
        return any(taker.ready for taker in self._all)

    async def fetch(
        self,
        address: PeerAddress,
        path: str,
        headers: Mapping[str, str],
        slot: memoryview,
        moved: Callable[[], object],
    ) -> None:
        """Fills a slot with an answer of a peer. The slot is the caller's again only if this returns.

        Raises NotSent, PeerUnusable; TakerGone where another way must be taken.
        """
        ready = [taker for taker in self._all if taker.ready]
        if not ready:
            raise TakerGone("none is left")
        taker = min(ready, key=lambda taker: len(taker.asked))
        await taker.fetch(self._peers[address], path, headers, _Asked(slot, moved))

    def end(self) -> None:
        """Kills all takers, and does not wait for their end: `free` does. What they were asked for is given up."""
        for taker in self._all:
            taker.end()
            taker.give_up()

    def free(self) -> None:
        """Waits for the end of killed takers, and gives their memory back. On any thread; once."""
        for taker in self._all:
            taker.wait()
        self.memory.close()

    def close(self) -> None:
        self.end()
        self.free()


def _started(channel: int, memory: int) -> "subprocess.Popen[bytes]":
    """Starts a taker in a session of its own: the terminal's signals are the pull's. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-m", "gcr.image.exchange.taker", str(channel), str(memory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[channel, memory],
        start_new_session=True,
        cwd="/",
    )
