"""The supervisor of a job, and the duplicates of the job's handles that it and the daemon keep."""

import logging
from threading import Lock

from msgspec import Struct, field

from gcr.daemon.keepers import BothKeepers, SoleKeeper
from gcr.daemon.missed import Missed
from gcr.job.decisions import KeptImage
from gcr.job.states import State
from gcr.memory.escrow import Escrow, Keeper
from gcr.peers.supervisor import SupervisorPeer

log = logging.getLogger("gcr.daemon")


class Supervision(Struct):
    """The peer that supervises a job, and the duplicates that the daemon keeps beside it.

    parks: it stays without its program, and brings it back · parked: it does, and this private image has the job
    revives: it is about to make the job's processes again, and has not said that they are there
    leaves: it can close all that CRIU could not save, and come back · sent_away: it was asked to
    """

    supervisor: SupervisorPeer | None = None
    adopted: Escrow = field(default_factory=Escrow)  # the daemon's duplicates: the keeper once the supervisor is gone
    missed: Missed = field(default_factory=Missed)  # what the supervisor has not heard of its escrow
    parks: bool = False
    revives: bool = False
    leaves: bool = False
    sent_away: bool = False
    parked: KeptImage | None = None
    unparking: Lock = field(default_factory=Lock)  # held by the one command that has it bring the program back

    @property
    def lasts(self) -> bool:
        """Returns True while the supervisor is connected."""
        return self.supervisor is not None and not self.supervisor.channel.closed.is_set()

    @property
    def state_without_processes(self) -> State:
        """Returns the state of a job that goes on, and of which no process has made itself known."""
        return State.RESTORING if self.revives else State.RUNNING

    def keeper(self, job: str) -> Keeper:
        """Returns the keepers of duplicates: the supervisor while it lives, and this daemon."""
        if self.supervisor is not None and self.lasts:
            return BothKeepers(job, self.supervisor, self.adopted, self.missed)
        return SoleKeeper(job, self.adopted, self.missed)

    def make_up(self, job: str, pid: int, batch: int) -> None:
        """Copies to a daemon that has just come what the supervisor kept of a process: either may die next."""
        supervisor = self.supervisor
        if supervisor is None:
            return
        self.missed.told(pid, supervisor.drop)
        if made := self.adopted.copy_from(supervisor, pid, batch):
            log.info("job %s: duplicates of %d handles of process %d made up", job, made, pid)

    def hand_on(self, pid: int, batch: int, at_rest: bool) -> None:
        """Gives a supervisor that was away the daemon's duplicates; they replace those of memory that is gone.

        No duplicates of a process `at_rest` are kept.
        """
        if self.supervisor is not None:
            self.missed.told(pid, self.supervisor.drop)
            self.adopted.copy_to(self.supervisor, pid, batch, only=at_rest)
