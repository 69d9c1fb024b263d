"""Exports of training programs that stand between their saves: a save exports what is new since the last one alone.

The agent of the process stays in its transaction, so it tells of each free, and no free returns before the workers have
released that memory. The process runs, and is shown so. A command of the job ends this first.
"""

import logging
import time
from collections.abc import Sequence
from threading import Lock

from msgspec import Struct, field

from gcr.engine.admit import refuse_stopped
from gcr.engine.aside import run_on
from gcr.engine.target import Target
from gcr.errors import PeerGone
from gcr.job.process import Process
from gcr.peers.agent import AgentPeer
from gcr.peers.worker import WorkerPeer

log = logging.getLogger("gcr.daemon")

IDLE_S = 600.0  # after the last save
REST_S = 600.0  # without exports that stand, for a program that frees too much for them


class Last(Struct, frozen=True):
    """A process's last save: the worker that made it, the name of the process's memory there, and the bytes."""

    worker: WorkerPeer
    owner: str
    nbytes: int


class Stand(Struct):
    """The exports of one process. `exporting_s`: what they took, and a save is spared; `freeing_s`: the frees since."""

    target: Target
    peer: AgentPeer | None  # the agent's connection: with it the agent's part ends
    exporting_s: float
    used_at: float  # on time.monotonic()
    freeing_s: float = 0.0
    last: Last | None = None

    def serves(self, process: Process) -> bool:
        """Tells whether agent and workers have still what was exported."""
        there = not any(worker.channel.closed.is_set() for worker in self.target.workers())
        return there and self.target.process is process and process.peer is self.peer and process.connected

    @property
    def is_dear(self) -> bool:
        """Tells whether the program has waited longer in its frees than a save is spared."""
        return self.freeing_s > self.exporting_s

    @property
    def is_due(self) -> bool:
        return self.is_dear or time.monotonic() - self.used_at > IDLE_S


class Standing(Struct):
    """The exports that stand, by pid. Thread-safe. A save of the process, or a command of its job, has the turn."""

    _by_pid: dict[int, Stand] = field(default_factory=dict)
    _rests: dict[int, float] = field(default_factory=dict)  # until when, by pid
    _lock: Lock = field(default_factory=Lock)

    def of(self, process: Process) -> Target | None:
        """Returns the target of which the exports stand, for the next save. Ends those that do not serve it."""
        with self._lock:
            stand = self._by_pid.get(process.identity.pid)
        if stand is None:
            return None
        if stand.serves(process):
            return stand.target
        self._end(stand)
        return None

    def keep(self, target: Target, exporting_s: float) -> bool:
        """Lets the exports of a save stand, where the program frees little. Returns whether they do.

        exporting_s: the seconds that they took; counted of the first save alone
        """
        with self._lock:
            known = self._by_pid.get(target.pid)
            if known is None and self._rests.get(target.pid, 0.0) > time.monotonic():
                return False
            spared = known.exporting_s if known else exporting_s
            self._by_pid[target.pid] = Stand(target, target.process.peer, spared, time.monotonic())
            return True

    def saved(self, pid: int, worker: WorkerPeer, nbytes: int) -> None:
        """Notes how large a save was; the next one is likely to be as large."""
        with self._lock:
            if stand := self._by_pid.get(pid):
                stand.last = Last(worker, stand.target.owner, nbytes)

    def last(self, pid: int) -> Last | None:
        """Returns the last save of a process, while the exports stand."""
        with self._lock:
            stand = self._by_pid.get(pid)
        return stand.last if stand else None

    def drop(self, process: Process) -> None:
        """Forgets the exports of a process that has ended, or of a save that takes them back by itself."""
        with self._lock:
            stand = self._by_pid.get(process.identity.pid)
            if stand is not None and stand.target.process is process:
                del self._by_pid[process.identity.pid]
            if process.ended:
                self._rests.pop(process.identity.pid, None)

    def released(self, pid: int, ids: Sequence[int]) -> bool:
        """Has the workers release memory that the process frees. Returns False where no exports of it stand."""
        with self._lock:
            stand = self._by_pid.get(pid)
        if stand is None:
            return False
        began = time.monotonic()
        stand.target.exports.released(ids)
        stand.freeing_s += time.monotonic() - began
        return True

    def is_due(self, process: Process) -> bool:
        """Tells whether exports of it stand that ought to be ended: they cost more than they spare, or are not used."""
        with self._lock:
            stand = self._by_pid.get(process.identity.pid)
            return stand is not None and stand.is_due

    def end(self, processes: Sequence[Process]) -> None:
        """Ends the exports of these processes, before a command. Raises what an agent that does not answer stands for.

        Raises WrongState for a process that is stopped; its exports stand still then.
        """
        for process in processes:
            with self._lock:
                stand = self._by_pid.get(process.identity.pid)
            if stand is not None:
                self._end(stand)

    def _end(self, stand: Stand) -> None:
        target = stand.target
        if not target.process.ended:
            refuse_stopped(target)
            try:
                run_on(target)
            except PeerGone as gone:  # an agent without a daemon has ended its part by itself
                log.debug("job %s: process %d: %s", target.process.job, target.pid, gone)
        target.forget_memory()
        self.drop(target.process)
        if stand.is_dear:
            log.info("job %s: process %d frees much: its exports do not stand", target.process.job, target.pid)
            with self._lock:
                self._rests[target.pid] = time.monotonic() + REST_S
