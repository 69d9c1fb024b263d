"""A checkpoint that leaves the program running: its copy is wanted, and nothing else of it stays.

    PREPARE · the parent's hashes · (live copy) · (room for a snapshot) · QUIESCE · drain · seal · gates open ·
    (the snapshot is read) · the copy is handed on · …

No memory of the program is unmapped, and its control state is not touched. What the image before has as well is not
copied, so nobody but the image's writer can use the copy (gcr.memory.partial).

Where the device has room, what is to be copied at the cut goes no further than there (gcr.worker.snapshot), and to the
host while the program runs again. What is sealed before the gates open has the books of the cut, and is there whatever
becomes of the program.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from gcr.engine.admit import refuse_nothing_to_move
from gcr.engine.checkpoint import Checkpoint
from gcr.engine.count import refuse_a_part
from gcr.engine.live import copy_live, refuse_its_own_copy, sizes_of
from gcr.engine.progress import Meter
from gcr.engine.rehome import close_books
from gcr.engine.sealing import seal
from gcr.engine.side_by_side import side_by_side
from gcr.engine.streaming import Stream, without_room
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.errors import NoRoom, PeerGone
from gcr.job.states import State, Way
from gcr.peers.worker import WorkerPeer
from gcr.protocol.seqpacket import close_all


class Glance(Checkpoint):
    """Made with `data_only`: as one that leaves the control state alone."""

    def look(
        self,
        baselines: Callable[[Sequence[Target]], Mapping[int, int]],
        copied: Callable[[Target, list[int]], object],
    ) -> None:
        """Copies what the parent image has not, and leaves the program running.

        `baselines` gives descriptors of what the parent has, by pid; `copied` takes the sealed copy of each process. It
        stands still from QUIESCE until what has changed since a live copy, or the parent, is in the arena or in a
        snapshot. No memory of it is unmapped. Raises ImageFailed where somebody needed the room of a snapshot.
        """
        with ExitStack() as occupying, Transaction(self.job) as undo:  # the copy alone is wanted: all is taken back
            self._prepare(undo)
            refuse_nothing_to_move(self.targets)
            refuse_its_own_copy(self.targets)
            self._compare_with(baselines(self.targets))
            if self.live:
                self.copied_live = copy_live(self.targets, self.course, self.node.config.drain_s)
            self._make_room(occupying)
            self._quiesce(undo)
            for target in self.targets:
                target.exports.export_new()
                close_books(target)
            refuse_its_own_copy(self.targets)
            self._drain_standing()
            sealed: list[tuple[Target, list[int]]] = []
            try:
                for target in self.targets:
                    if target.bytes_by_device:
                        sealed.append((target, seal(target, partial=True)))
                side_by_side(target.resume for target in self.targets)
                for target in self.targets:
                    target.process.move(State.RUNNING)
                self.course.mark("running")
                if self.snapshot_bytes:
                    self._read_snapshots()
                    occupying.close()
                while sealed:
                    copied(*sealed.pop())
            finally:
                close_all([fd for _, fds in sealed for fd in fds])

    @property
    def _way(self) -> Way:
        return Way.RUNNING_ON

    def _stream(self, short: NoRoom) -> Stream:
        raise without_room(short, imaged=True, live=self.live, copies=False, stays=True)

    def _compare_with(self, baselines: Mapping[int, int]) -> None:
        try:
            for target in self.targets:
                for worker in target.workers() if target.pid in baselines else ():
                    worker.compare_with(target.hold, target.owner, baselines[target.pid])
        finally:
            close_all([*baselines.values()])

    def _pairs(self) -> Iterator[tuple[Target, WorkerPeer]]:
        return ((target, worker) for target in self.targets for worker in target.workers())

    def _make_room(self, occupying: ExitStack) -> None:
        """Last, while it runs: who else uses the device has it for as long as can be."""
        limit = self.course.left(self.node.config.prepare_s)
        side_by_side(
            partial(quietly, "room for a snapshot", partial(self._make_room_with, target, worker, limit, occupying))
            for target, worker in self._pairs()
        )

    def _make_room_with(self, target: Target, worker: WorkerPeer, limit: float, occupying: ExitStack) -> None:
        """Agents know before there is any, and until all is given back, by whatever way."""
        until_over = occupying.enter_context(ExitStack())
        until_over.enter_context(self.node.occupying(worker.device))
        if not worker.make_room(target.hold, limit):
            until_over.close()

    def _drain_standing(self) -> None:
        self.course.left(self.node.config.drain_s)
        meter = Meter(self.course, "draining", sizes_of(self.targets))
        meter.start()
        limit = self.course.left(self.node.config.drain_s)
        side_by_side(partial(self._drain_device, target, worker, limit, meter) for target, worker in self._pairs())
        refuse_a_part({target.pid: target.books.table.bytes for target in self.targets}, self.drained)
        self.course.mark("snapshotted" if self.snapshot_bytes else "drained")

    def _read_snapshots(self) -> None:
        """While it runs, and what it frees is free at once."""
        side_by_side(target.forget_memory for target in self.targets)
        self.course.reach("reading")
        meter = Meter(self.course, "reading", {key: int(one["snapshot"]) for key, one in self.drained.items()})
        meter.start()
        limit = self.course.left(self.node.config.drain_s)
        side_by_side(partial(self._read, target, worker, limit, meter) for target, worker in self._pairs())
        self.course.mark("drained")

    def _read(self, target: Target, worker: WorkerPeer, limit: float, meter: Meter) -> None:
        copy = target.pid, worker.device
        done = worker.copy_on(target.hold, limit, partial(meter.at, copy))
        if done["bytes"] != self.drained[copy]["snapshot"]:
            raise PeerGone(f"the worker of {worker.device} had not all of what it copied on the device")
        self.drained[copy]["seconds"] += done["seconds"]
