"""Counts of the daemon's checkpoints and restores for Prometheus, made of its events. Names: docs/serve.md.

They are about all jobs of this user, also those that are no model. So no label names a job.
"""

import logging
import time
from collections.abc import Callable, Iterator
from threading import Thread

from prometheus_client import CollectorRegistry, Counter, Histogram

from gcr.api import jobevents
from gcr.api.jobevents import AnyEvent, CheckpointDone, DoneEvent, FailedEvent
from gcr.errors import GcrError
from gcr.rendezvous.following import Reader

log = logging.getLogger(__name__)

AGAIN_S = 10.0  # after an error of a daemon that answers, one of another version, for example
_SHARE = (0.1, 0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
_SWAP = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 120, 300)


class JobMetrics:
    """`direction` is `checkpoint` or `restore`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        direction = ["direction"]
        self._took = Histogram(
            "gcr_job_swap_seconds", "From the request to its end.", direction, buckets=_SWAP, registry=registry
        )
        self._stopped = Histogram(
            "gcr_job_stopped_seconds", "Programs stood still for a checkpoint.", buckets=_SWAP, registry=registry
        )
        self._bytes = Counter("gcr_job_swap_bytes", "Device data that was moved.", direction, registry=registry)
        self._share = Histogram(
            "gcr_job_link_share",
            "Rate of a copy, of the speed of its device's link.",
            direction,
            buckets=_SHARE,
            registry=registry,
        )
        self._phases = Counter(
            "gcr_job_phase_seconds", "Time of swaps by phase.", ["direction", "phase"], registry=registry
        )
        self._failures = Counter(
            "gcr_job_swap_failures", "Swaps not done, by error code.", ["direction", "code"], registry=registry
        )
        self._images = Counter("gcr_job_images", "Images by their end.", ["result"], registry=registry)
        self._missed = Counter("gcr_job_events_missed", "Events that are in no count.", registry=registry)

    def count(self, event: AnyEvent) -> None:
        match event:
            case DoneEvent():
                self._done(jobevents.command_of(event), event)
            case FailedEvent():
                self._failures.labels(jobevents.command_of(event), event.code).inc()
            case jobevents.ImageWritten():
                self._images.labels("written").inc()
            case jobevents.ImageFailed():
                self._images.labels("failed").inc()
            case jobevents.EventsMissed():
                self._missed.inc(event.count)

    def _done(self, direction: str, event: DoneEvent) -> None:
        self._took.labels(direction).observe(event.took_s)
        self._bytes.labels(direction).inc(event.bytes)
        if event.link_share is not None:
            self._share.labels(direction).observe(event.link_share)
        for phase, seconds in _each(event):
            self._phases.labels(direction, phase).inc(seconds)
        if isinstance(event, CheckpointDone):
            self._stopped.observe(event.stop_s)


def follow(*heard: Callable[[AnyEvent], object]) -> None:
    """Has each event from now on heard, in a thread that lasts as long as the process."""
    Thread(target=_follow, args=heard, name="gcr-serve-events", daemon=True).start()


def _follow(*heard: Callable[[AnyEvent], object]) -> None:
    reader = Reader(after=None)

    def gone(error: Exception) -> None:
        log.info("no events: %s", error)
        if not reader.daemon:  # none has answered yet: all that the first one has seen comes after now
            reader.after = 0

    while True:
        try:
            for event in reader.follow(gone):
                for hear in heard:
                    hear(event)
        except GcrError as error:
            log.warning("no events: %s", error)
        time.sleep(AGAIN_S)


def _each(event: DoneEvent) -> Iterator[tuple[str, float]]:
    """Yields the seconds of each phase; the event has the end of each since the request."""
    before = 0.0
    for phase, end in sorted(event.phases_s.items(), key=lambda item: item[1]):
        yield phase, max(0.0, end - before)
        before = end
