"""An image as the way out of a job that the host has no room for: see engine/streaming.py.

Its helper is asked in turn by a thread for each window; it is watched as in silence.py, so a disk that hangs, a caller
that leaves and a deadline end the wait for any of them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from gcr.daemon.images.imaging import COMMIT_S, NO_TIMEOUT, Imaging
from gcr.daemon.images.silence import WATCHED_S, Reading
from gcr.engine.node import Course
from gcr.engine.plan import Plan
from gcr.engine.routes import checkpoint
from gcr.engine.streaming import Window
from gcr.engine.target import Target
from gcr.engine.work import Work
from gcr.errors import DeadlinePassed, GcrError, Interrupted, PeerGone
from gcr.imageerrors import ImageFailed
from gcr.job.decisions import KeptImage

log = logging.getLogger("gcr.daemon")


class ImageOutlet(Struct):
    """Implements engine.streaming.Outlet. `unhurried`: no caller has named a deadline, so the disk may take its time.

    begun: called once it is known that the job goes this way
    """

    imaging: Imaging
    course: Course
    unhurried: bool
    begun: Callable[[], object]
    _asked: bool = False  # to make it durable

    def prepare(self, targets: Sequence[Target]) -> None:
        if self.unhurried:
            self.course.timeout = NO_TIMEOUT
        with failing(self.imaging):
            self.imaging.build_upon(self.course, targets)
        self.imaging.streamed = True
        self.begun()

    def open(self, pid: int, fds: Sequence[int], slot_bytes: int) -> None:
        with failing(self.imaging):
            self.imaging.ready().lend_ring(pid, fds, slot_bytes)

    def take(self, pid: int, device: str, window: Window) -> None:
        with failing(self.imaging):
            left = self.course.left(NO_TIMEOUT) + WATCHED_S
            self.imaging.ready().take(pid, device, window, left, self._watched())

    @property
    def kept_in(self) -> KeptImage:
        return kept_in(self.imaging)

    def finish(self, targets: Sequence[Target]) -> None:
        self.course.tell("committing")
        self._asked = True
        with failing(self.imaging):
            watched = self._watched(max(COMMIT_S, self.imaging.order.patience))
            self.imaging.write_streamed(targets, self.course, watched)

    def withdraw(self) -> None:
        if not self._asked:
            return  # the helper leaves nothing when it ends
        withdraw(self.imaging)

    def _watched(self, patience: float | None = None) -> Reading:
        return Reading(self.imaging.claim.store.path, self.course, patience or self.imaging.order.patience)


def kept_in(imaging: Imaging) -> KeptImage:
    """Returns the record of an image that alone has a job's bytes."""
    store = imaging.claim.store
    return KeptImage(store.path, imaging.order.name, bool(store.key), imaging.order.user)


class HeldImage(Struct, frozen=True):
    """Implements gcr.engine.steps.image.Held."""

    imaging: Imaging
    course: Course

    def begin(self, targets: Sequence[Target]) -> None:
        with failing(self.imaging):
            self.imaging.begin_held(targets, self.course)

    def give_up(self) -> None:
        self.imaging.give_up_held()


@contextmanager
def failing(imaging: Imaging) -> Iterator[None]:
    """Raises ImageFailed where the block fails, unless it was interrupted or took too long."""
    try:
        yield
    except (Interrupted, DeadlinePassed):
        raise
    except GcrError as error:
        raise ImageFailed(f"image {imaging.order.name} was not written: {error.message}", hint=error.hint) from error


def withdraw(imaging: Imaging) -> None:
    """Removes everything of an image, also where its helper died just after it had published it. Raises nothing."""
    try:
        imaging.ready().withdraw(imaging.order.patience)
    except PeerGone:
        _remove_published(imaging)
    except GcrError as error:  # it is of no use: the job has run since
        order = imaging.order
        log.warning("job %s: image %s was not taken back: %s", order.job, order.name, error)


def _remove_published(imaging: Imaging) -> None:
    """Removes what a helper that died has published. Raises nothing: an image that stays is useless."""
    order = imaging.order
    if imaging.facts is None:  # it was told of none
        return
    try:
        helper = order.start()
        try:
            helper.remove(imaging.claim.store, order.name, imaging.facts.created, order.patience)
        finally:
            helper.channel.close()
    except (GcrError, OSError) as error:
        log.warning("job %s: image %s was not taken back: %s", order.job, order.name, error)


def imaged(work: Work, imaging: Imaging, unhurried: bool, begun: Callable[[], object]) -> Plan:
    """Returns the plan of a checkpoint to an image, also where the host has no room for the bytes."""
    outlet = ImageOutlet(imaging, work.course, unhurried, begun)
    return checkpoint.plan_of(work, partial(imaging.may_begin, work.targets, work.course), outlet)
