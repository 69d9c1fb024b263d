"""The daemon's side of a supervisor's connection: one job, registered first, then told of."""

import os
from threading import Lock

from msgspec import Struct, field

from gcr.daemon import survivors
from gcr.daemon.arrivals import Arrivals
from gcr.daemon.commands import fill_ahead
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.opened import readers_of
from gcr.daemon.jobs import Job
from gcr.errors import UsageError
from gcr.job.decisions import record_of
from gcr.peers.supervisor import SupervisorPeer
from gcr.processes import shares_namespaces
from gcr.protocol.channel import Request
from gcr.protocol.operations.daemon import Finished, Register, Registered, Remade, Revived, Started, Vacate
from gcr.protocol.operations.operation import Answer, Dispatcher, Handlers


class SupervisorDesk(Struct):
    """Serves one supervisor. A message that is malformed, or out of turn, is refused and changes no job."""

    node: Coordinator
    arrivals: Arrivals
    peer: SupervisorPeer
    job: Job | None = None
    _lock: Lock = field(default_factory=Lock)

    def operations(self) -> Dispatcher:
        """Returns the server of the operations."""
        handlers: Handlers = {
            Register: self._register,
            Started: self._started,
            Revived: self._revived,
            Vacate: self._vacate,
            Remade: self._remade,
            Finished: self._finished,
        }
        return Dispatcher("the daemon", handlers)

    def _register(self, asked: Register, _fds: list[int], _request: Request) -> Answer:
        with self._lock:
            if self.job is not None:
                raise UsageError("a supervisor registers one job")
            self.job = self.arrivals.supervisor(self.peer, asked)
            if asked.revives:
                self.node.fleet.expect_readers(readers_of(asked.revives))
            if asked.revives and asked.fills:
                fill_ahead.begin(self.node, self.job, asked.fills, asked.revives)
            return Answer(Registered(self.job.name, contained=not shares_namespaces(self.peer.pid, ("pid",))))

    def _started(self, asked: Started, _fds: list[int], _request: Request) -> None:
        self.arrivals.started(self._registered().token, asked.pid, self.peer.pid)

    def _revived(self, asked: Revived, _fds: list[int], _request: Request) -> None:
        record = record_of(asked.decision.encode())
        if record is None:
            raise UsageError("the record of the job's decision does not read back")
        survivors.revived(self.node, self._registered(), asked.pid, record)
        self.arrivals.begin_recovery(self._registered())  # commands wait until its agents have come

    def _vacate(self, asked: Vacate, _fds: list[int], _request: Request) -> None:
        if self._registered().owner == os.getuid():
            jobs = self.node.jobs
            self.node.fleet.vacate(asked.ids, lambda world: any(job.busy for job in jobs.all() if job.world == world))

    def _remade(self, _asked: Remade, _fds: list[int], _request: Request) -> None:
        survivors.refuse_unmade(self.node, self._registered())

    def _finished(self, _asked: Finished, _fds: list[int], _request: Request) -> Answer:
        return Answer(self.arrivals.finished(self._registered().token))

    def _registered(self) -> Job:
        if self.job is None:
            raise UsageError("a supervisor registers its job first")
        return self.job
