"""The daemon's node: its jobs, its fleet of helpers and its journal, which the commands work on."""

import itertools
import logging
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial

from gcr.config import Config
from gcr.daemon import departures, reports
from gcr.daemon.contexts import Contexts
from gcr.daemon.cuts import Cuts
from gcr.daemon.fleet import Fleet
from gcr.daemon.images.written import is_written
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.labels import Labels
from gcr.daemon.occupied import Occupied
from gcr.daemon.recovery import Recovery
from gcr.daemon.residents import Residents
from gcr.daemon.sharers import located
from gcr.engine.joint import Located
from gcr.engine.node import World
from gcr.engine.tidying import quietly
from gcr.engine.turns import Turns
from gcr.job.decisions import DecisionRecord
from gcr.job.journal import Journal
from gcr.peers.control import ControlPeer
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.worker import CopyName
from gcr.rendezvous.away import unmark_job
from gcr.runtime import socket_path

log = logging.getLogger("gcr.daemon")


class Coordinator:
    """Implements the engine's Node."""

    def __init__(self, config: Config, journal: Journal) -> None:
        self.config = config
        self.journal = journal
        self.jobs = Jobs()
        self.cuts = Cuts(self.jobs)
        self.fleet = Fleet()
        self.occupied = Occupied()
        self.contexts = Contexts(self.jobs, self.occupied)
        self.residents = Residents(self.fleet, self.occupied, self.contexts.follow)
        self.turns = Turns()
        self.labels = Labels()
        self.recovery = Recovery(self, self.jobs)
        self._transactions = itertools.count(time.time_ns())

    def next_transaction(self) -> int:
        return next(self._transactions)

    def worker(self, world: World, device: str) -> WorkerPeer:
        starts = self.fleet.warm_worker(world, device) is None  # and makes a context
        with self.turns.making([device] if starts else (), self.config.worker_start_s):
            return self.fleet.worker(world, device)

    def warm_worker(self, world: World, device: str) -> WorkerPeer | None:
        return self.fleet.warm_worker(world, device)

    def needs_worker(self, world: World, device: str) -> bool:
        return any(job.needs_worker(world, device) for job in self.jobs.all())

    def keeps_worker(self, world: World, device: str) -> bool:
        """Tells whether an idle worker stays: a job needs it, or it may have memory of a suspended one."""
        return self.needs_worker(world, device) or self.residents.may_be_on(device)

    def control(self, world: World) -> ControlPeer:
        return self.fleet.control(world)

    def leave(self, device: str, users: Collection[int]) -> None:
        self.fleet.leave(device, users, self.needs_worker)

    def free_room(self, devices: Collection[str]) -> None:
        self.residents.free(devices)
        self.contexts.make_way(devices)
        self.fleet.give_up_snapshots(devices)

    def make_way(self, device: str, nbytes: int, beside: Collection[str]) -> int:
        return self.residents.make_way(device, nbytes, beside)

    def stay(self, worker: WorkerPeer, copy: CopyName) -> int:
        return self.residents.stay(worker, copy)

    def occupying(self, device: str) -> AbstractContextManager[None]:
        return self.occupied.on(device)

    def who(self, pid: int) -> str:
        job = next((job for job in self.jobs.all() if pid in job.processes), None)
        if job:
            return f"process {pid} of job {job.name}, {reports.shown(job.state)}"
        ours = self.fleet.worker_of(pid)
        if ours is None:
            return f"process {pid}"
        served = ", ".join(job.name for job in self.jobs.all() if job.needs_worker(*ours))
        said = f" for job {served}" if served else ", which ends when idle (setting worker_idle_s)"
        return f"process {pid}, a worker of gcr's{said}"

    def locate(self, name: int, pid: int) -> Located | None:
        return located(self.jobs, name, pid)

    def has_image(self, record: DecisionRecord) -> bool:
        return is_written(record, self.fleet.image_helper, self.config.store_s)

    def forget_decision(self, job: Job) -> None:
        """Forgets the decision once none of its processes is left off its devices."""
        if departures.outlives_decision(job):
            if job.decision and job.decision.away:
                quietly("remove the marks", partial(unmark_job, socket_path(), job.decision.away))
            self.journal.forget(job.name)
            job.decision = None
