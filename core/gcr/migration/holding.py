"""A restore that waits at its last barrier, with closed gates, while the source decides."""

from collections.abc import Mapping
from threading import Condition, Thread

from msgspec import Struct, field

from gcr.api.barriers import Barrier
from gcr.api.reports import RestoreReport
from gcr.api.requests import RestoreRequest
from gcr.errors import DeadlinePassed, GcrError, typed
from gcr.migration.ways import Between

_GRACE_S = 30.0


class Holding(Struct):
    """One restore, on a thread of its own."""

    is_ready: bool = False
    report: RestoreReport | None = None
    error: GcrError | None = None
    _changed: Condition = field(default_factory=Condition)

    @classmethod
    def begun(cls, between: Between, id: str, devices: Mapping[str, str]) -> "Holding":
        """Begins to restore the job at the target."""
        made = cls()
        request = RestoreRequest(target=between.job, cut=id, timeout=between.timeout, devices=dict(devices))
        Thread(target=made._run, args=(between, request), name="gcr-holding", daemon=True).start()
        return made

    def await_barrier(self, seconds: float) -> None:
        """Returns once the job waits. Raises the restore's error, DeadlinePassed."""
        self._await(seconds, until_ready=True)

    def await_end(self, seconds: float) -> RestoreReport:
        """Returns the report. Raises the restore's error, DeadlinePassed."""
        self._await(seconds, until_ready=False)
        assert self.report
        return self.report

    def forsake(self) -> None:
        """Waits a while for a restore that was given up to be taken back. Raises nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self.report or self.error, _GRACE_S)

    def _await(self, seconds: float, until_ready: bool) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self._is_over() or (until_ready and self.is_ready), seconds)
        if self.error:
            raise self.error
        if not came:
            raise DeadlinePassed(f"the restore has not got on within {seconds:g} s", hint="a longer --timeout")

    def _is_over(self) -> bool:
        return self.report is not None or self.error is not None

    def _run(self, between: Between, request: RestoreRequest) -> None:
        try:
            report = between.target.restore(request, between.timeout, self._came)
            self._note(report=report)
        except Exception as failure:
            self._note(error=typed(failure))

    def _came(self, barrier: Barrier) -> None:
        if barrier is Barrier.READY:
            with self._changed:
                self.is_ready = True
                self._changed.notify_all()

    def _note(self, report: RestoreReport | None = None, error: GcrError | None = None) -> None:
        with self._changed:
            self.report, self.error = report, error
            self._changed.notify_all()
