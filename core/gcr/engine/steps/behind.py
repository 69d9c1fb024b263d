"""The copies of a cut, once the program runs again: snapshots are read, and copies handed to the image's writer.

No process is touched any more, and none is asked: another transaction may stop the job meanwhile, and make a copy of
its own. Each copy is named by its transaction (CopyName), so the end of one leaves the others whole.
"""

from contextlib import ExitStack
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.engine.progress import Meter
from gcr.engine.side_by_side import side_by_side
from gcr.engine.steps.run_on import Copied, Seal
from gcr.engine.steps.snapshot import pairs
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import PeerGone
from gcr.peers.worker import WorkerPeer


class Behind(Struct, frozen=True):
    """The sealed copies of one cut. `undo` gives them up.

    occupying: lasts until the workers have given all room of snapshots back (MakeRoom)
    """

    work: Work
    seal: Seal
    occupying: ExitStack = field(default_factory=ExitStack)
    undo: Transaction = field(default_factory=Transaction)

    def __post_init__(self) -> None:
        self.undo.push("occupied", self.occupying.close)
        for target in self.work.targets:
            self.undo.push("copy", target.forget_copies)
        self.undo.push("sealed", self.seal.close)

    def finish(self, copied: Copied) -> None:
        """Reads the snapshots and hands the copies on. Keeps no copy, also where it fails.

        Raises ImageFailed where another program needed the room of a snapshot, PeerGone, Interrupted, DeadlinePassed.
        """
        with self.undo:
            self._read()
            self.seal.hand_on(copied)

    def _read(self) -> None:
        work = self.work
        if not work.snapshot_bytes:
            return
        work.course.reach("reading")
        meter = Meter(work.course, "reading", {key: one.snapshot for key, one in work.drained.items()})
        meter.start()
        limit = work.course.left(work.node.config.drain_s)
        side_by_side(partial(self._read_one, target, worker, limit, meter) for target, worker in pairs(work))
        work.course.mark("drained")
        self.occupying.close()

    def _read_one(self, target: Target, worker: WorkerPeer, limit: float, meter: Meter) -> None:
        copy = target.pid, worker.device
        done, drained = worker.copies.copy_on(target.copy_name, limit, partial(meter.at, copy)), self.work.drained[copy]
        if done.bytes != drained.snapshot:
            raise PeerGone(f"the worker of {worker.device} had not all of what it copied on the device")
        self.work.drained[copy] = replace(drained, seconds=drained.seconds + done.seconds)
