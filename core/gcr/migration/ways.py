"""The two nodes of a migration, and the steps that are asked of them."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec import Struct, field

from gcr.api.answers import Answer, Pong
from gcr.api.barriers import Barrier
from gcr.api.events import Listener
from gcr.api.listings import JobInfo
from gcr.api.migrations import AnyStep
from gcr.api.reports import CheckpointReport, RestoreReport
from gcr.api.requests import CheckpointRequest, CutRequest, MigrateRequest, RestoreRequest
from gcr.cluster.nodes import Link
from gcr.errors import DaemonUnavailable, GcrError, PeerGone
from gcr.rendezvous.client import ANSWER_TIMEOUT

A = TypeVar("A", bound=Answer)

DEFAULT_TIMEOUT = 600.0  # seconds for each step
GRACE_S = 30.0  # for a node to take back what it was to do, and to say so
_AGAIN_S = 0.2


class Way(Struct, frozen=True):
    """The way to one node. `name`: as the command line has it · `hear`: is told of progress."""

    name: str
    link: Link
    hear: Listener

    def take(self, step: AnyStep, kind: type[A], limit: float) -> A:
        """Has the node take a step within `limit` seconds. Raises what the node raised; PeerGone, DaemonUnavailable."""
        return self.link.ask(MigrateRequest(step=step.to_json(), timeout=limit), kind, limit + GRACE_S, self.hear)

    def checkpoint(self, request: CheckpointRequest, limit: float) -> CheckpointReport:
        return self.link.ask(request, CheckpointReport, limit + GRACE_S, self.hear)

    def restore(self, request: RestoreRequest, limit: float, told: Callable[[Barrier], object]) -> RestoreReport:
        return self.link.restore(request, told, limit + GRACE_S)

    def go(self, id: str) -> None:
        """Lets the job pass the barrier at which it waits."""
        self.link.ask(CutRequest(id=id, barrier=Barrier.READY), Pong, ANSWER_TIMEOUT, self.hear)

    def give_up(self, id: str) -> None:
        """Has the job give up its wait. Raises NoSuchCut where it does not wait."""
        self.link.ask(CutRequest(id=id), Pong, ANSWER_TIMEOUT, self.hear)

    def row(self, job: str) -> JobInfo | None:
        return next((each for each in self.link.jobs().jobs if each.job == job), None)

    def patiently(self, act: Callable[[], A], seconds: float) -> A:
        """Does it again while the daemon is away: a supervisor starts the next one. Raises as `act` does."""
        end = time.monotonic() + seconds
        while True:
            try:
                return act()
            except (PeerGone, DaemonUnavailable):
                if time.monotonic() > end:
                    raise
                time.sleep(_AGAIN_S)


class Between(Struct, frozen=True):
    """A job, and the two nodes. `host`: the address at which the target reaches the source.

    devices: those asked for, old to new · timeout: seconds for each step
    """

    job: str
    source: Way
    target: Way
    host: str
    devices: Mapping[str, str] = field(default_factory=dict)
    timeout: float = DEFAULT_TIMEOUT


def is_silent(error: GcrError) -> bool:
    """Returns whether it is not known what the node has done."""
    return isinstance(error, PeerGone | DaemonUnavailable)
