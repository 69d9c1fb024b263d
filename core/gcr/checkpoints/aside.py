"""Device memory of this process, copied aside by gcr's worker under `gcr run`: this process copies and pins nothing.

    aside = Aside.of([(address, bytes), ...], wait)  # returns when the memory may change
    aside.memory(0)         # where the first span will lie, in memory that is lent to be read
    aside.arrived.result()  # None: it lies there; else what went wrong

`wait` returns when the device's work on that memory has ended. It is called while gcr makes all ready for the copy.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import accumulate
from threading import Thread
from typing import Any, Self

from gcr.api.answers import Pong, SpansSaved
from gcr.api.events import ProgressEvent
from gcr.api.requests import SaveNowRequest, SaveSpansRequest
from gcr.checkpoints.region import Region
from gcr.errors import DeadlinePassed, GcrError, NoSuchJob, typed
from gcr.rendezvous.client import Client

Span = tuple[int, int]  # address, bytes

SAFE_S = 10.0  # longest wait of the program for the copy within the device
DRAINED_S = 300.0  # longest wait for the bytes on the host


def under_gcr() -> bool:
    """Tells whether this program was started by `gcr run`."""
    return "GCR_TOKEN" in os.environ and "GCR_SOCKET" in os.environ


class Aside:
    """Spans of this process's device memory on their way to host memory.

    region: the addresses where they will lie · arrived: done when they are there
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        """Raises UsageError, OSError."""
        self._request = SaveSpansRequest(spans=tuple(spans), waits=True, timeout=DRAINED_S)
        self._places = [*accumulate((size for _, size in spans), initial=0)]
        self.region = Region(self._places[-1])
        self._safe, self.arrived = Future[None](), Future[None]()

    @classmethod
    def of(cls, spans: Sequence[Span], wait: Callable[[], object], timeout: float = SAFE_S) -> Self:
        """Has the spans copied once `wait` returns, and returns when their memory may change.

        Raises NoSuchJob without `gcr run`, DaemonUnavailable, PeerGone, DeadlinePassed after `timeout` seconds,
        NoRoom, UnsupportedState, WrongState: nothing was copied then, and nothing has changed.
        """
        if not under_gcr():
            raise NoSuchJob("this program is not under gcr run")
        made = cls(spans)
        made._begin(wait, timeout)
        return made

    def memory(self, number: int) -> Any:
        """Returns the bytes of a span, as Region.memory."""
        return self.region.memory(self._places[number], self._request.spans[number][1])

    def _begin(self, wait: Callable[[], object], timeout: float) -> None:
        client = Client.connect(autostart=False, timeout=timeout)
        Thread(target=self._ask, args=(client,), name="gcr-aside", daemon=True).start()
        try:
            wait()
            with suppress(GcrError):  # where it was refused, `_safe` has the reason
                client.ask(SaveNowRequest(), Pong, timeout=timeout)
            self._await_safe(timeout)
        finally:
            if not self._safe.done() or self._safe.exception():
                client.close()  # the daemon takes everything back

    def _await_safe(self, timeout: float) -> None:
        try:
            self._safe.result(timeout)
        except TimeoutError as late:
            raise DeadlinePassed(f"gcr has not copied the memory aside within {timeout:g} s") from late

    def _ask(self, client: Client) -> None:
        """Waits for the copy, on a thread of its own."""
        try:
            with client:
                answer, fds = client.given(self._request, SpansSaved, timeout=DRAINED_S, on_event=self._heard)
            self.region.fill(answer.sizes, fds)
        except Exception as error:
            failed = error if isinstance(error, GcrError) else typed(error)
            if not self._safe.done():
                self._safe.set_exception(failed)
            self.arrived.set_exception(failed)
        else:
            self._heard(ProgressEvent(phase="safe"))  # a busy socket may have lost the event
            self.arrived.set_result(None)

    def _heard(self, event: ProgressEvent) -> None:
        if event.phase == "safe" and not self._safe.done():
            self._safe.set_result(None)
