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
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import accumulate
from threading import Event, Thread
from typing import Any, Self

from msgspec import Struct

from gcr.api.answers import SpansSaved
from gcr.api.events import ProgressEvent
from gcr.api.requests import SaveNowRequest, SaveSpansRequest
from gcr.checkpoints.region import Region
from gcr.errors import DeadlinePassed, NoSuchJob, typed
from gcr.rendezvous.prompt import Prompt

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

        timeout: seconds that `wait_for_copy` waits · run, step: for the daemon's events
        Raises NoSuchJob without `gcr run`, UsageError; DaemonUnavailable, DeadlinePassed, PeerGone, UnsafeRuntime.
        """
        if not under_gcr():
            raise NoSuchJob("this program is not under gcr run")
        self._spans: Sequence[Span] = ()
        self._places, self._timeout = [0], timeout
        self._region: Region | None = None
        self._aside = Future[int]()  # of the bytes that are read in place
        self.safe, self.arrived = Future[None](), Future[None]()
        asked = SaveSpansRequest(timeout=DRAINED_S, run=run, step=step)
        self._prompt = Prompt(asked, SpansSaved, timeout)
        self._turn = Event()  # of the thread: from then on it alone reads what gcr says
        try:
            Thread(target=self._hear_the_rest, name="gcr-aside", daemon=True).start()
        except BaseException:  # no room for another thread
            self._prompt.close()
            raise

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

        Raises UsageError, OSError, PeerGone, NotRead.
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
            self._prompt.add(asked)
        except BaseException:
            self.give_up()
            raise

    def wait_for_copy(self) -> None:
        """Returns when the spans that are not read in place may change. Reads what gcr says, on this thread.

        Raises UsageError, OSError, PeerGone, DeadlinePassed, WrongVersion, NoRoom, UnsupportedState, WrongState,
        NoSuchJob for a program that gcr does not know yet: nothing was copied then, and nothing has changed.
        """
        end = time.monotonic() + self._timeout
        try:
            while not self._aside.done():
                self._hear(end)
            self._aside.result()
        except DeadlinePassed as late:
            self.give_up()
            raise DeadlinePassed(f"gcr has not copied the memory aside within {self._timeout:g} s") from late
        except BaseException:
            self.give_up()
            raise
        self._turn.set()

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
        self._prompt.end()
        self._turn.set()

    def _hear(self, end: float) -> None:
        """Takes the next word of gcr. Raises what ends the save."""
        try:
            found = self._prompt.next(end)
            if isinstance(found, ProgressEvent):
                self._heard(found)
                return
            answer, fds = found
            self.region.fill(answer.sizes, fds)
        except Exception as error:
            failed = typed(error)
            for each in (self._aside, self.safe, self.arrived):
                if not each.done():
                    each.set_exception(failed)
            raise
        # a busy socket may have lost the events
        self._heard(ProgressEvent(phase="aside", total_bytes=answer.in_place_bytes))
        self._heard(ProgressEvent(phase="safe"))
        self.arrived.set_result(None)

    def _hear_the_rest(self) -> None:
        """Waits for the end of the save, on a thread of its own, once the program goes on."""
        self._turn.wait(DRAINED_S)
        end = time.monotonic() + DRAINED_S
        try:
            while not self.arrived.done():
                self._hear(end)
        except Exception:  # the futures have it
            pass
        finally:
            self._prompt.close()

    def _heard(self, event: ProgressEvent) -> None:
        if event.phase == "aside" and not self._aside.done():
            self._aside.set_result(event.total_bytes or 0)
        if event.phase == "safe" and not self.safe.done():
            self.safe.set_result(None)
