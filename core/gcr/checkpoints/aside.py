"""Device memory of this process, saved by gcr's worker under `gcr run`: this process copies and pins nothing.

    aside = Aside()                                # gcr makes all ready meanwhile
    aside.begin([Span(address, bytes), ...], wait)
    aside.wait_for_copy()   # returns when the memory may change
    aside.memory(0)         # where the first span will lie, in memory that is lent to be read
    aside.arrived.result()  # None: it lies there; else what went wrong

`wait` returns when the device's work on that memory has ended.

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

    safe: done when the memory may change; without spans in place it is when `wait_for_copy` returns, or soon after
    arrived: done when the bytes are on the host. Both have the error if the spans are not saved.
    """

    def __init__(self, timeout: float = SAFE_S, run: str = "", step: int | None = None) -> None:
        """Asks gcr to make all ready for `begin`, and waits for nothing. The program may run, allocate and free.

        timeout: seconds that `begin` and `wait_for_copy` wait · run, step: for the daemon's events
        Raises NoSuchJob without `gcr run`, UsageError.
        """
        if not under_gcr():
            raise NoSuchJob("this program is not under gcr run")
        self._asked = SaveSpansRequest(timeout=DRAINED_S, run=run, step=step)
        self._spans: Sequence[Span] = ()
        self._places, self._timeout = [0], timeout
        self._region: Region | None = None
        self._aside = Future[int]()  # of the bytes that are read in place
        self.safe, self.arrived = Future[None](), Future[None]()
        self._client = Future[Client]()
        Thread(target=self._ask, name="gcr-aside", daemon=True).start()

    @classmethod
    def of(cls, spans: Sequence[Span], wait: Callable[[], object], timeout: float = SAFE_S, fills: bool = True) -> Self:
        """Has spans saved without getting ready before. Raises as the constructor, `begin` and `wait_for_copy`."""
        made = cls(timeout)
        made.begin(spans, wait, fills)
        made.wait_for_copy()
        return made

    def begin(self, spans: Sequence[Span], wait: Callable[[], object], fills: bool = True) -> None:
        """Waits for `wait`, and then has the spans saved. Once.

        fills: spans in place are copied aside as far as there is room

        Raises UsageError, OSError, DaemonUnavailable, PeerGone, DeadlinePassed.
        """
        try:
            asked = SaveNowRequest(
                spans=tuple((span.address, span.bytes) for span in spans),
                in_place=tuple(number for number, span in enumerate(spans) if span.in_place),
                fills=fills,
            )
            self._spans, self._places = tuple(spans), [*accumulate((span.bytes for span in spans), initial=0)]
            self._region = Region(self._places[-1])
            wait()
            client = self._connected()
            with suppress(GcrError):  # where it was refused, `_aside` has the reason
                client.ask(asked, Pong, timeout=self._timeout)
        except BaseException:
            self.give_up()
            raise

    def _connected(self) -> Client:
        try:
            return self._client.result(self._timeout)
        except TimeoutError as late:
            raise DeadlinePassed(f"gcr has not answered within {self._timeout:g} s") from late

    def wait_for_copy(self) -> None:
        """Returns when the spans that are not read in place may change.

        Raises UsageError, OSError, DaemonUnavailable, PeerGone, DeadlinePassed, NoRoom, UnsupportedState, WrongState,
        NoSuchJob for a program that gcr does not know yet: nothing was copied then, and nothing has changed.
        """
        try:
            self._aside.result(self._timeout)
        except TimeoutError as late:
            self.give_up()
            raise DeadlinePassed(f"gcr has not copied the memory aside within {self._timeout:g} s") from late
        except BaseException:
            self.give_up()
            raise

    @property
    def region(self) -> Region:
        """The addresses where the spans will lie, from `begin` on."""
        assert self._region
        return self._region

    @property
    def in_place_bytes(self) -> int:
        """The bytes that are read in place; all others were copied aside when `wait_for_copy` returned."""
        return self._aside.result(0)

    def memory(self, number: int) -> Any:
        """Returns the bytes of a span, as Region.memory."""
        return self.region.memory(self._places[number], self._spans[number].bytes)

    def give_up(self) -> None:
        """Ends a save that is under way: the daemon takes everything back. Idempotent."""
        self._client.add_done_callback(_close)

    def _ask(self) -> None:
        """Connects, and waits for the copy, on a thread of its own."""
        try:
            self._connect()
            with self._client.result() as client:
                answer, fds = client.given(self._asked, SpansSaved, timeout=DRAINED_S, on_event=self._heard)
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

    def _connect(self) -> None:
        try:
            client = Client.connect(autostart=False, timeout=self._timeout)
        except BaseException as error:
            self._client.set_exception(error)
            raise
        self._client.set_result(client)

    def _heard(self, event: ProgressEvent) -> None:
        if event.phase == "aside" and not self._aside.done():
            self._aside.set_result(event.total_bytes or 0)
        if event.phase == "safe" and not self.safe.done():
            self.safe.set_result(None)


def _close(connected: Future[Client]) -> None:
    if not connected.exception():
        connected.result().close()
