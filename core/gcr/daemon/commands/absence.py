"""The absence of a job's agents, and of its supervisor: they close all that CRIU could not save, and stay away."""

import time
from collections.abc import Callable, Sequence
from typing import Self

from msgspec import Struct

from gcr.daemon.jobs import Job
from gcr.errors import RolledBack
from gcr.job.process import Process
from gcr.peers.supervisor import SupervisorPeer
from gcr.processes import alive, label_of
from gcr.protocol.channel import Channel
from gcr.rendezvous import away
from gcr.runtime import socket_path

POLL = 0.005
LEAVE_S = 10.0  # for a process to close its connection
RETURN_S = 30.0  # for the agents to come back


class Absence(Struct):
    """Those of one job, from the first that is sent away until `call_back` or `forget`. Made by `of`."""

    job: Job
    token: str

    @classmethod
    def of(cls, job: Job) -> Self:
        """Must be made before a process leaves, or with the token that they had."""
        return cls(job, token_of(job))

    def send_agent(self, process: Process) -> None:
        """Raises RolledBack, and as a call of a peer."""
        peer = process.agent
        self._send(peer.hello.pid_label, lambda: peer.leave(process.suspension.transaction), peer.channel)

    def send_supervisor(self, peer: SupervisorPeer) -> None:
        """Raises RolledBack, and as a call of a peer."""
        self.job.supervision.sent_away = True
        self._send(label_of(peer.pid), peer.leave, peer.channel)

    def _send(self, label: int, leave: Callable[[], object], channel: Channel) -> None:
        away.mark(socket_path(), self.token, label)
        leave()
        if not channel.closed.wait(LEAVE_S):
            raise RolledBack(f"{channel.name} of job {self.job.name} did not close its connection")

    def call_back(self) -> None:
        """Has them return, and waits for the agents. Raises RolledBack where one does not come."""
        self.forget()
        end = time.monotonic() + RETURN_S
        while missing := missing_of(self.job.begun):
            if time.monotonic() > end:
                raise RolledBack(f"the agent of process {missing[0].identity.pid} has not come back")
            time.sleep(POLL)

    def forget(self) -> None:
        """Removes the marks. Raises OSError."""
        away.unmark_job(socket_path(), self.token)


def token_of(job: Job) -> str:
    """Returns the token that the job's processes were started with; empty without one."""
    return job.token or next((each.peer.hello.token for each in job.living if each.peer), "")


def missing_of(processes: Sequence[Process]) -> list[Process]:
    """Returns those that live, and have no connection."""
    return [each for each in processes if _is_away(each)]


def _is_away(process: Process) -> bool:
    return alive(process.identity) and (process.peer is None or process.peer.channel.closed.is_set())
