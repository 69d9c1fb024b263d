"""`gcr swap A B`: A leaves its device and B comes back to it, or both are as they were.

B needs the room that A has, and A keeps it until its checkpoint is decided. Before that B has a head start where there
is room besides (head_start.py): that is undone by an eviction. B's processes are touched after A's decision alone.
"""

import logging
import time
from collections.abc import Callable
from threading import Event

from msgspec import Struct

from gcr.api.events import Listener
from gcr.api.reports import RestoreReport, SwapReport
from gcr.api.requests import RestoreRequest, SwapRequest, Target
from gcr.daemon.commands import checkpoint, restore
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.daemon.permission import OURSELVES, Caller
from gcr.daemon.residents import Resident, evict
from gcr.errors import GcrError, Interrupted, Lost, SwapFailed, Unanswered, UsageError, WrongState
from gcr.job.states import State

log = logging.getLogger("gcr.daemon")

RESTING = (State.SUSPENDED, State.DATA_SUSPENDED)


class Swap(Struct, frozen=True):
    """One swap. `progress` returns the teller of a target; `who`: the caller in words."""

    node: Coordinator
    request: SwapRequest
    progress: Callable[[Target], Listener]
    cancelled: Event
    caller: Caller = OURSELVES
    who: str = "gcrd"

    def run(self) -> SwapReport:
        """Both reports. Raises SwapFailed where B did not come back and A did; and what the checkpoint of A raises."""
        back = self._refuse()
        stays = bool(self._resident(back))
        try:
            return self._swapped()
        except GcrError:
            for one in () if stays else self._resident(back):  # of the head start
                evict(one)
            raise

    def _resident(self, job: Job) -> list[Resident]:
        holds = {process.hold for process in job.begun}
        return [one for one in self.node.residents.all() if one.hold in holds]

    def _swapped(self) -> SwapReport:
        began = time.monotonic()
        out = checkpoint.run(self.node, self.request.checkpoint(), self._asked(self.request.out, self.cancelled))
        left = time.monotonic()
        try:
            back = self._come_back(left - began)
        except Unanswered:  # it has everything back
            raise
        except GcrError as error:
            raise self._undone(error) from error
        return SwapReport(out=out.timed(left - began), back=back.timed(time.monotonic() - left))

    def _refuse(self) -> Job:
        """Refuses before the first job is touched. Returns B. Raises NoSuchJob, NotOurs, UsageError, WrongState."""
        back = self.node.jobs.find(self.request.back, self.caller.may_use)
        self.caller.check_owner(back.owner, f"job {back.name}")
        if self.request.out in (back.name, back.program.pid, *back.processes):
            raise UsageError("a swap is of two jobs: one leaves, another comes back")
        if back.busy or back.state not in RESTING:
            text = f"job {back.name} is not suspended, it is {back.state}"
            raise WrongState(text, state=back.state, hint="gcr ps")
        return back

    def _come_back(self, passed: float) -> RestoreReport:
        """`passed`: seconds of the swap's time that are over."""
        limit = self.request.timeout
        request = self.request.restore(max(limit - passed, 0.001) if limit else None)
        return restore.run(self.node, request, self._asked(self.request.back, self.cancelled))

    def _returned(self, out: Target) -> str:
        """Restores `out`. Returns its state."""
        request = RestoreRequest(target=out)
        return restore.run(self.node, request, self._asked(out, Event())).state

    def _asked(self, target: Target, cancelled: Event) -> Asked:
        return Asked(self.progress(target), cancelled, caller=self.caller, who=self.who)

    def _undone(self, error: GcrError) -> GcrError:
        """Restores A, also if no caller waits any more. Returns the error that reports it."""
        out, back = self.request.out, self.request.back
        failed = f"{back} could not be restored: {error.message}"
        try:
            state = self._returned(out)
        except GcrError as second:
            log.warning("job %s: not taken back after a swap: %s", out, second)
            text = f"{failed}; and {out} could not be taken back: {second.message}"
            return SwapFailed(text, state=second.state, hint=f"gcr restore {out}")
        kind = type(error) if isinstance(error, Lost | Interrupted) else SwapFailed
        return kind(f"{failed}; {out} is back and {state}", state=state, hint=error.hint)
