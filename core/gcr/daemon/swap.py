"""`gcr swap A B`: A leaves its device and B comes back to it, or both are as they were.

One after the other. B needs the room that A has, and A keeps it until its checkpoint is decided: before that B's
physical memory could be made only where both fit, and a checkpoint that then failed would have to suspend B once more.
"""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any, Protocol

from msgspec import Struct

from gcr.daemon.jobs import Jobs
from gcr.daemon.permission import OURSELVES, Caller
from gcr.errors import GcrError, Interrupted, Lost, SwapFailed, Unanswered, UsageError, WrongState
from gcr.job.states import State

log = logging.getLogger("gcr.daemon")

Body = Mapping[str, Any]
Report = dict[str, Any]
Progress = Callable[[dict[str, Any]], None]
RESTING = (State.SUSPENDED, State.DATA_SUSPENDED)


class Transactions(Protocol):
    """The coordinator, as far as a swap needs it."""

    jobs: Jobs

    def checkpoint(self, body: Body, progress: Progress, cancelled: Event, *, caller: Caller) -> Report: ...

    def restore(self, body: Body, progress: Progress, cancelled: Event, *, caller: Caller) -> Report: ...


class Swap(Struct, frozen=True):
    """`body`: `out` and `in` are targets, `data_only` is for the one, `devices` for the other, `timeout` for both."""

    node: Transactions
    body: Body
    progress: Callable[[str | int], Progress]  # of a target
    cancelled: Event
    caller: Caller = OURSELVES

    def run(self) -> Report:
        """Both reports. Raises SwapFailed where B did not come back and A did; and what the checkpoint of A raises."""
        self._refuse()
        began = time.monotonic()
        told = self.progress(self.body["out"])
        out = self.node.checkpoint(self._body("out", "data_only"), told, self.cancelled, caller=self.caller)
        left = time.monotonic()
        out["wall_s"] = left - began
        try:
            back = self._come_back(left - began)
        except Unanswered:  # it has everything back
            raise
        except GcrError as error:
            raise self._undone(error) from error
        return {"out": out, "in": {**back, "wall_s": time.monotonic() - left}}

    def _refuse(self) -> None:
        """What can be seen before A is touched. Raises NoSuchJob, NotOurs, UsageError, WrongState."""
        back = self.node.jobs.find(self.body["in"], self.caller.may_use)
        self.caller.check_owner(back.owner, f"job {back.name}")
        if self.body["out"] in (back.name, back.pid, *back.processes):
            raise UsageError("a swap is of two jobs: one leaves, another comes back")
        if back.busy or back.state not in RESTING:
            text = f"job {back.name} is not suspended, it is {back.state}"
            raise WrongState(text, state=back.state, hint="gcr ps")

    def _come_back(self, passed: float) -> Report:
        """`passed`: seconds of the swap's time that are over."""
        body, limit = self._body("in", "devices"), self.body.get("timeout")
        if limit:
            body["timeout"] = max(limit - passed, 0.001)
        return self.node.restore(body, self.progress(self.body["in"]), self.cancelled, caller=self.caller)

    def _body(self, leg: str, option: str) -> Report:
        shared = {name: self.body.get(name) for name in ("timeout", "backend")}
        return {"target": self.body[leg], **shared, option: self.body.get(option)}

    def _undone(self, error: GcrError) -> GcrError:
        """A is restored, also where no one waits for it any more. Returns the error that says so."""
        out, back = self.body["out"], self.body["in"]
        failed = f"{back} could not be restored: {error.message}"
        try:
            state = self.node.restore({"target": out}, self.progress(out), Event(), caller=self.caller)["state"]
        except GcrError as second:
            log.warning("job %s: not taken back after a swap: %s", out, second)
            text = f"{failed}; and {out} could not be taken back: {second.message}"
            return SwapFailed(text, state=second.state, hint=f"gcr restore {out}")
        kind = type(error) if isinstance(error, Lost | Interrupted) else SwapFailed
        return kind(f"{failed}; {out} is back and {state}", state=state, hint=error.hint)
