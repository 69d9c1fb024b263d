"""Device memory of this process, saved by gcr's worker under `gcr run`: this process copies and pins nothing.

    aside = Aside.of([Span(address, bytes), ...], wait)  # returns when the memory may change
    aside.memory(0)         # where the first span will lie, in memory that is lent to be read
    aside.arrived.result()  # None: it lies there; else what went wrong

`wait` returns when the device's work on that memory has ended. It is called while gcr makes all ready for the copy.

A span may be read in place: then it must not change before `aside.safe` is done. As many bytes of such spans as the
device has room for are copied aside still; `aside.in_place_bytes` says how many are not.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import accumulate
from threading import Thread
from typing import Any, Self

from msgspec import Struct

from gcr.api.answers import Pong, SpansSaved
from gcr.api.events import ProgressEvent
from gcr.api.requests import SaveNowRequest, SaveSpansRequest
from gcr.checkpoints.region import Region
from gcr.errors import DeadlinePassed, GcrError, NoSuchJob, typed
from gcr.rendezvous.client import Client

SAFE_S = 10.0  # longest wait of the program for the copy within the device
DRAINED_S = 300.0  # longest wait for the bytes on the host


class Span(Struct, frozen=True):
    """Device memory of this process. `in_place`: it may be read where it is, until `Aside.safe` is done."""

    address: int
    bytes: int
    in_place: bool = False


def under_gcr() -> bool:
    """Tells whether this program was started by `gcr run`."""
    return "GCR_TOKEN" in os.environ and "GCR_SOCKET" in os.environ


class Aside:
    """Spans of this process's device memory on their way to host memory.

    region: the addresses where they will lie
    safe: done when the memory may change; without spans that are read in place it is when `of` returns, or soon after
    arrived: done when the bytes are on the host. Both have the error if the spans are not saved.
    """

    def __init__(self, spans: Sequence[Span], fills: bool) -> None:
        """Raises UsageError, OSError."""
        self._request = SaveSpansRequest(
            spans=tuple((span.address, span.bytes) for span in spans),
            in_place=tuple(number for number, span in enumerate(spans) if span.in_place),
            fills=fills,
            waits=True,
            timeout=DRAINED_S,
        )
        self._places = [*accumulate((span.bytes for span in spans), initial=0)]
        self.region = Region(self._places[-1])
        self._client: Client | None = None
        self._aside = Future[int]()  # of the bytes that are read in place
        self.safe, self.arrived = Future[None](), Future[None]()

    @classmethod
    def of(cls, spans: Sequence[Span], wait: Callable[[], object], timeout: float = SAFE_S, fills: bool = True) -> Self:
        """Has the spans saved once `wait` returns, and returns when those not in place may change.

        fills: spans in place are copied aside as far as there is room

        Raises NoSuchJob without `gcr run`, DaemonUnavailable, PeerGone, DeadlinePassed after `timeout` seconds,
        NoRoom, UnsupportedState, WrongState: nothing was copied then, and nothing has changed.
        """
        if not under_gcr():
            raise NoSuchJob("this program is not under gcr run")
        made = cls(spans, fills)
        made._begin(wait, timeout)
        return made

    @property
    def in_place_bytes(self) -> int:
        """The bytes that are read in place; all others were copied aside when `of` returned."""
        return self._aside.result(0)

    def memory(self, number: int) -> Any:
        """Returns the bytes of a span, as Region.memory."""
        return self.region.memory(self._places[number], self._request.spans[number][1])

    def give_up(self) -> None:
        """Ends a save whose bytes are not on the host yet: the daemon takes everything back. Idempotent."""
        if self._client:
            self._client.close()

    def _begin(self, wait: Callable[[], object], timeout: float) -> None:
        self._client = client = Client.connect(autostart=False, timeout=timeout)
        Thread(target=self._ask, args=(client,), name="gcr-aside", daemon=True).start()
        try:
            wait()
            with suppress(GcrError):  # where it was refused, `_aside` has the reason
                client.ask(SaveNowRequest(), Pong, timeout=timeout)
            self._await_aside(timeout)
        except BaseException:
            self.give_up()
            raise

    def _await_aside(self, timeout: float) -> None:
        try:
            self._aside.result(timeout)
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
            for each in (self._aside, self.safe):
                if not each.done():
                    each.set_exception(failed)
            self.arrived.set_exception(failed)
        else:  # a busy socket may have lost the events
            self._heard(ProgressEvent(phase="aside", total_bytes=answer.in_place_bytes))
            self._heard(ProgressEvent(phase="safe"))
            self.arrived.set_result(None)

    def _heard(self, event: ProgressEvent) -> None:
        if event.phase == "aside" and not self._aside.done():
            self._aside.set_result(event.total_bytes or 0)
        if event.phase == "safe" and not self.safe.done():
            self.safe.set_result(None)
