"""`migrate`, at the target: devices are filled with a job's memory as the images of the rounds come in.

Each image is read as a restore reads it: through a ring, each chunk compared with its name before it goes to the
device. A chunk that has the name that it had in the image before, at the same place, is there already. Nothing depends
on a fill: where it fails the restore reads the last image whole.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api.migrations import Fill, Filled
from gcr.daemon.coming import Coming, is_arriving
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.opened import OpenedImage
from gcr.daemon.images.silence import WATCHED_S, Reading
from gcr.engine.inflow import Inflow
from gcr.engine.node import Course, World
from gcr.engine.side_by_side import side_by_side
from gcr.errors import Interrupted, NoContext, PeerGone, WrongDevice, typed
from gcr.faults import reach
from gcr.image.chunks.lines import by_device
from gcr.image.store.location import store_path
from gcr.memory.layout import SealedTable
from gcr.migrationerrors import NoSuchMigration
from gcr.peers.image import ImagePeer, StorePlace
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.coming import COMING
from gcr.protocol.operations.worker import CopyName
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")

Windows = Sequence[tuple[int, int]]


class Line(Struct, frozen=True):
    """The memory of one process on one device, on its way. Implements the engine's Arriving. `device`: that it left."""

    pid: int
    device: str
    copy_name: CopyName
    owner: str

    def left(self, _device: str) -> str:
        return self.device


class Lacking(Struct, frozen=True):
    """An image as far as the devices lack it. Implements the engine's Flowing."""

    image: OpenedImage
    windows_of: dict[tuple[int, str], Windows] = field(default_factory=dict)
    ids_of: dict[tuple[int, str], set[int]] = field(default_factory=dict)  # of the allocations

    def size(self, pid: int, device: str) -> int:
        return sum(size for _, size in self.windows_of[pid, device])

    def windows(self, pid: int, device: str, most: int) -> Iterator[tuple[int, int]]:
        del most  # they were asked for with it
        return iter(self.windows_of[pid, device])

    def lend_slots(self, device: str, slot_bytes: int, fds: Sequence[int]) -> None:
        self.image.lend_slots(device, slot_bytes, fds)

    def read(self, pid: int, device: str, slot: int, windows: Windows) -> None:
        self.image.read(pid, device, slot, windows)


def fill(node: Coordinator, step: Fill, world: World, timeout: float, asked: Asked) -> Filled:
    """Fills the devices with an image. A failure is said in the answer, and nothing is left on the devices then.

    Raises NoSuchMigration where the job is not on its way here.
    """
    began, coming = time.monotonic(), node.residents.arriving.of(step.job, step.id)
    course = Course("migrate", node.next_transaction(), timeout, asked.progress, coming.over)
    with coming.lock:
        try:
            if not is_arriving(step.job, step.id):
                raise NoSuchMigration(f"the migration {step.id} of {step.job} is over here")
            if coming.over.is_set():
                raise Interrupted("a program there needed the room, or the fill was given up")
            size = Filling(node, coming, step.job, world, step.devices, course).run(step.image)
        except Exception as error:
            coming.give_up()
            if isinstance(error, NoSuchMigration):
                raise
            said = typed(error)
            untyped = error if said is not error else None
            log.warning("job %s: nothing is filled with %s: %s", step.job, step.image, error, exc_info=untyped)
            return Filled(bytes=0, fill_s=time.monotonic() - began, refused=said.message)
    return Filled(bytes=size, fill_s=time.monotonic() - began)


class Filling(Struct, frozen=True):
    """One fill. `devices`: those that take the place of others, by UUID. The lock of `coming` is held.

    place: of the image; None for the store of the daemon's user · others: helpers that read as well, beside the first
    present: devices of the machine, where these are known; there is no worker for another one
    """

    node: Coordinator
    coming: Coming
    job: str
    world: World
    devices: Mapping[str, str]
    course: Course
    place: StorePlace | None = None
    others: Sequence[ImagePeer] = ()
    present: Collection[str] | None = None

    def run(self, image: str) -> int:
        """Returns the bytes that were copied. Raises NoRoom, Damaged, PeerGone …, and releases nothing then."""
        coming, config = self.coming, self.node.config
        coming.whole = b""
        opened = self._opened(image)
        lacking, lines = Lacking(opened), list[tuple[Line, WorkerPeer]]()
        for process in opened.manifest.processes:
            for table in by_device(process.table):
                if table.handles:
                    lines.append(self._fitted(table, lacking))
        self._release_all_but({(line.pid, line.device) for line, _ in lines})
        reach("fill.fitted")
        inflow = Inflow(lacking, self.course, config.slot_bytes, config.drain_s)
        inflow.run([(line, worker) for line, worker in lines if lacking.size(line.pid, line.device)])
        reach("fill.flowed")
        for line, _ in lines:
            opened.helpers[0].brought(line.pid, line.device)
        for line, worker in lines:  # a worker that has died, or was told to let go meanwhile, has less
            if worker.handles.held(line.copy_name.hold) != lacking.ids_of[line.pid, line.device]:
                raise PeerGone(f"device {worker.device} has not all of process {line.pid} any more")
        coming.whole = opened.manifest.seal()
        copies = {(line.pid, worker.device): (line.pid, line.device) for line, worker in lines}
        coming.moved = {copies[copy]: moved for copy, moved in inflow.done.items()}
        return sum(each.bytes for each in inflow.done.values())

    def _opened(self, image: str) -> OpenedImage:
        place, course, patience = self.place or StorePlace(str(store_path())), self.course, self.node.config.store_s
        helper, left = self._helper(), course.left(patience) + WATCHED_S
        manifest = helper.manifest(place, image, left, Reading(place.path, course, patience))
        helpers = [helper, *self.others]
        side_by_side(
            partial(each.open, place, manifest, left, Reading(place.path, course, patience)) for each in helpers
        )
        return OpenedImage(manifest, helpers, place.path, course, patience)

    def _helper(self) -> ImagePeer:
        coming = self.coming
        if coming.helper is None or coming.helper.channel.closed.is_set():
            coming.helper = self.node.fleet.image_helper()
        return coming.helper

    def _fitted(self, table: SealedTable, lacking: Lacking) -> tuple[Line, WorkerPeer]:
        """Has the worker make what the line lacks, and notes the windows that it has to be filled with."""
        pid, left, coming, node = table.pid, table.handles[0].device, self.coming, self.node
        worker = self._worker(self.devices.get(left, left))
        line = Line(pid, left, CopyName(coming.hold(pid), COMING), f"{self.job}/{pid}")
        if (pid, left) not in coming.workers:
            coming.marks.enter_context(node.occupying(worker.device))
        coming.workers[pid, left] = worker
        fd = replace(table, segments=()).to_memfd()
        try:
            worker.copies.reclaim(line.copy_name, line.owner, left, [fd])
        finally:
            close_all([fd])
        with node.turns.making([worker.device], self.course.left(node.config.control_s)):
            kept = worker.coming.fit(line.copy_name)
        lacking.ids_of[pid, left] = {handle.spec.id for handle in table.handles}
        lacking.windows_of[pid, left] = self._windows(line, kept, lacking.image)
        return line, worker

    def _release_all_but(self, lines: set[tuple[int, str]]) -> None:
        for place in self.coming.workers.keys() - lines:
            self.coming.workers.pop(place).surrender(self.coming.hold(place[0]))

    def _windows(self, line: Line, kept: set[int], image: OpenedImage) -> Windows:
        patience = self.node.config.store_s
        reading, left = Reading(image.store, self.course, patience), self.course.left(patience) + WATCHED_S
        most = self.node.config.slot_bytes
        return image.helpers[0].lacking(line.pid, line.device, kept, most, left, reading)

    def _worker(self, device: str) -> WorkerPeer:
        """Raises NoContext where the device has no room for one, WrongDevice where there is no such device."""
        node, limit = self.node, self.node.config.worker_start_s
        if self.present is not None and device not in self.present:
            raise WrongDevice(f"there is no device {device} here")
        worker = node.worker(self.world, device)
        with node.turns.making([device], limit):
            if not worker.attach(limit):
                raise NoContext(f"device {device} has no room for a context")
        return worker
