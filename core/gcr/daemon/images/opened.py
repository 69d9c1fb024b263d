"""An image that a job comes back from: helpers have it open, and read of it what the engine asks for.

A large one is read by two helpers, each for some of the slots: the interpreter of one bounds it to a part of what disk,
memory and processors can do.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from msgspec.structs import replace

from gcr.daemon.coming import Coming
from gcr.daemon.images.imaging import NO_TIMEOUT
from gcr.daemon.images.silence import WATCHED_S, Reading, event_of
from gcr.engine.node import Course
from gcr.engine.side_by_side import side_by_side
from gcr.engine.target import Target
from gcr.errors import GcrError
from gcr.image.chunks.lines import by_device
from gcr.image.chunks.windows import ImagedLine, LineKey, lines_of
from gcr.image.files.manifest import Cut, Manifest
from gcr.imageerrors import WrongImage
from gcr.job.decisions import DecisionRecord
from gcr.peers.image import ImagePeer, StorePlace
from gcr.peers.worker import WorkerPeer
from gcr.processes import ProcessIdentity, alive
from gcr.protocol.operations.worker import Moved
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")

SEVERAL_FROM = 256 << 20  # bytes of an image that two helpers read


@dataclass(slots=True)
class OpenedImage:
    """Implements the engine's Imaged. `patience`: seconds that the store may keep silent.

    pids: in the image's tables, by the present ones where these are others
    coming: memory that may have been filled with this image · open_later: opens it, before anything is read
    moved: the copies to memory that was filled while the processes were made, and taken
    """

    manifest: Manifest
    helpers: Sequence[ImagePeer]
    store: str
    course: Course
    patience: float
    pids: Mapping[int, int] = field(default_factory=dict)
    coming: Coming | None = None
    open_later: Callable[[], object] | None = None
    moved: dict[LineKey, Moved] = field(default_factory=dict)
    _opening: Lock = field(default_factory=Lock)
    _lines: Mapping[LineKey, ImagedLine] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = lines_of((each.table for each in self.manifest.processes), self.manifest.chunk_bytes)

    def size(self, pid: int, device: str) -> int:
        return self._line(pid, device).size

    def windows(self, pid: int, device: str, most: int) -> Iterator[tuple[int, int]]:
        return self._line(pid, device).windows(most)

    def _line(self, pid: int, device: str) -> ImagedLine:
        if line := self._lines.get((self._imaged(pid), device)):
            return line
        raise WrongImage(f"image {self.manifest.name} has nothing of process {pid} on device {device}")

    def tables(self, pid: int) -> list[int]:
        """Raises OSError."""
        fds: list[int] = []
        try:
            for process in self.manifest.processes:
                if process.table.pid == self._imaged(pid):
                    fds += (replace(table, pid=pid, segments=()).to_memfd() for table in by_device(process.table))
        except BaseException:
            close_all(fds)
            raise
        return fds

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        self._open()
        for helper in self.helpers:
            helper.lend_slots(device, slot_bytes, fds)

    def read(self, pid: int, device: str, slot: int, windows: Sequence[tuple[int, int]]) -> None:
        helper = self.helpers[slot % len(self.helpers)]
        helper.read(self._imaged(pid), device, slot, windows, _left(self.course), self._reading())

    def whole(self, pid: int) -> list[int]:
        self._open()
        reading = self._reading()
        reading.tell = lambda now: self.course.progress(event_of("reading", now))
        return self.helpers[0].load(self._imaged(pid), _left(self.course), reading)

    def ahead(self, pid: int, device: str, worker: WorkerPeer) -> str | None:
        coming = self.coming
        if coming is None or coming.whole != self.manifest.seal():
            return None
        place = self._imaged(pid), device
        hold = coming.taken(*place, worker)
        if hold and coming.is_wanted and place in coming.moved:
            self.moved[place] = coming.moved[place]
        return hold

    def came(self, pid: int, device: str) -> Moved | None:
        return self.moved.get((self._imaged(pid), device))

    def _open(self) -> None:
        with self._opening:
            if self.open_later:
                self.open_later()
            self.open_later = None

    def _imaged(self, pid: int) -> int:
        return self.pids.get(pid, pid)

    def _reading(self) -> Reading:
        """Returns the patience of one call: its silence is counted from its beginning."""
        return Reading(self.store, self.course, self.patience)


def readers_of(nbytes: int) -> int:
    """Returns how many helpers read an image of so many bytes."""
    return 2 if nbytes >= SEVERAL_FROM else 1


@contextmanager
def opened(
    asked: tuple[str, StorePlace] | None,
    targets: Sequence[Target],
    start: Callable[[], ImagePeer],
    course: Course,
    patience: float,
    unhurried: bool,
    decision: DecisionRecord | None = None,
    coming: Coming | None = None,
) -> Iterator[OpenedImage | None]:
    """Opens the image, by name and store, to restore from instead of host memory. Yields None if none was asked for.

    decision: on the processes. They may have come back from an image themselves, and under other pids
    coming: memory of the job that was filled ahead, if there is any
    unhurried: no caller has named a deadline, so the disk may take its time, as long as it is not silent.
    It is of these very processes. No chunk was looked at yet. Raises NoSuchImage, WrongImage, Damaged, StoreUnusable,
    Interrupted, DeadlinePassed.
    """
    if asked is None:
        yield None
        return
    if unhurried:
        course.timeout = NO_TIMEOUT
    helpers = list[ImagePeer]()

    def started() -> ImagePeer:
        helpers.append(start())
        return helpers[-1]

    try:
        if coming:
            coming.await_fill(partial(_look, coming, course))
            if knows := coming.helper_that_knows():
                helpers.append(knows)
        manifest, pids = _looked_at(*asked, targets, helpers[0] if helpers else started(), course, patience, decision)
        open_all = partial(_open_all, manifest, asked[1], helpers[0], started, course, patience)
        there = coming is not None and coming.whole == manifest.seal()
        if not there:
            open_all()
        course.mark("opened")
        later = open_all if there else None
        yield OpenedImage(manifest, helpers, asked[1].path, course, patience, pids, coming, later)
    finally:
        for helper in helpers:
            helper.channel.close()


def _open_all(
    manifest: Manifest,
    store: StorePlace,
    first: ImagePeer,
    another: Callable[[], ImagePeer],
    course: Course,
    patience: float,
) -> None:
    """Has the helper open the image, and another one that is started meanwhile if the image is large.

    If no other one can be started, the first reads all.
    """

    def opens(helper: ImagePeer) -> None:
        helper.open(store, manifest, _left(course), Reading(store.path, course, patience))

    def another_opens() -> None:
        try:
            helper = another()
        except GcrError as error:
            log.warning("image %s of job %s is read by one helper: %s", manifest.name, manifest.source.job, error)
            return
        opens(helper)

    others = readers_of(manifest.costs.bytes_total) - 1
    side_by_side([lambda: opens(first), *([another_opens] * others)])


def _looked_at(
    image: str,
    store: StorePlace,
    targets: Sequence[Target],
    helper: ImagePeer,
    course: Course,
    patience: float,
    decision: DecisionRecord | None,
) -> tuple[Manifest, Mapping[int, int]]:
    """Returns the manifest of an image of these processes, and `pids` as of OpenedImage."""
    course.tell("opening")
    manifest = helper.manifest(store, image, _left(course), Reading(store.path, course, patience))
    kept = decision.image if decision else None
    revived = kept is not None and (kept.store, kept.name) == (store.path, image) and manifest.cut is Cut.PROCESS
    pids = decision.imaged if decision and revived else {}
    _refuse_other_processes(manifest, targets, revived, pids)
    return manifest, pids


def _look(coming: Coming, course: Course) -> None:
    """Tells of a fill that is under way. Raises Interrupted, DeadlinePassed."""
    course.left(NO_TIMEOUT)
    if coming.told:
        course.progress(coming.told)


def _left(course: Course) -> float:
    """Seconds, and some more: a Reading ends the call."""
    return course.left(NO_TIMEOUT) + WATCHED_S


def _refuse_other_processes(
    manifest: Manifest, targets: Collection[Target], revived: bool, pids: Mapping[int, int]
) -> None:
    """The device memory of an image is for the very processes that are still suspended at its cut. Raises WrongImage.

    revived: CRIU has brought them back from this image, so they have begun at another time
    pids: as of OpenedImage
    """
    if manifest.cut is Cut.APP:
        raise WrongImage(f"image {manifest.name} has the cut {manifest.cut}, which this gcr cannot restore")
    with_data = {pids.get(target.pid, target.pid): target for target in targets if target.bytes_by_device}
    for imaged in manifest.processes:
        target = with_data.pop(imaged.table.pid, None)
        identity = ProcessIdentity(imaged.table.pid, imaged.table.start_time, imaged.stack)
        if target is None and manifest.only_copy and not alive(identity):
            continue  # it has ended, and the others have nothing else to come back from
        if target is None or not (revived or target.process.identity.is_same(identity)):
            raise _stale(manifest, f"process {identity.pid}, which is gone")
        if target.transaction != imaged.table.transaction or target.generation not in (None, imaged.generation):
            raise _stale(manifest, f"process {identity.pid} as it was; it has run since")
    if with_data:
        raise _stale(manifest, f"a part of the job; process {min(with_data)} is not in it")


def _stale(manifest: Manifest, what: str) -> WrongImage:
    text = f"image {manifest.name} is of {what}: it holds device memory alone, and that is of no use to another process"
    return WrongImage(text, hint="gcr images")
