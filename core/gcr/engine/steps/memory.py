"""Room for a restore: the workers make all of the physical memory, and hold ballast for the driver.

The restore takes memory that is resident, instead of making it.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gcr.engine.agent_control import refuse_shared
from gcr.engine.copyout import StagedCopy, refuse_without_room, short_on, unexportable
from gcr.engine.lending import joint_of, refuse_its_own_copy
from gcr.engine.orphaned import Orphaned
from gcr.engine.restore import Restore
from gcr.engine.steps.bring_back import discard
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.engine.transaction import Transaction
from gcr.errors import NoRoom, UnsupportedState
from gcr.peers.worker import WorkerPeer
from gcr.protocol.seqpacket import close_all


class MakeMemory(Struct, frozen=True):
    """Makes room for everything, or refuses while the targets are untouched. Raises NoRoom, DeviceShared."""

    restore: Restore

    def do(self, undo: Transaction) -> None:
        restore = self.restore
        restore.course.tell("making room")
        restore.course.left(restore.node.config.prepare_s)
        for target in restore.targets:
            self._make_for(undo, target)
        for owner in restore.orphaned:
            self._make_of(undo, owner)
        self.refuse_without_room()
        restore.course.mark("room")

    def _make_for(self, undo: Transaction, target: Target) -> None:
        image, node = self.restore.image, self.restore.node
        discard(target)  # left there by an attempt that could not be taken back
        if target.keeps_context and not self.restore.data_only:
            for device in target.bytes_by_device:
                node.leave(device, target.control.holders(device))
            refuse_shared(target.control, target.pid, target.bytes_by_device, node.who)
        if not target.bytes_by_device:  # a context and no memory: nothing was staged
            return
        self._surrender_left(target)
        if self._agent_must_copy(target) or not self._create(undo, target):
            refuse_its_own_copy(target, joint_of(self.restore.targets))
            target.copy = StagedCopy.of(image.whole(target.pid) if image else target.staged())

    def _make_of(self, undo: Transaction, owner: Orphaned) -> None:
        """Makes all memory of a process that has ended; what no other process holds is released in the end."""
        if not all(map(owner.attach, owner.bytes_by_device)):
            text = f"no worker of gcr can hold the memory of process {owner.pid}, which has ended and left it to others"
            raise UnsupportedState(text, hint="is there room for one more context on its device?")
        self._surrender_left(owner)
        self._create(undo, owner)

    def _surrender_left(self, target: Target) -> None:
        """Makes the workers of the devices that the process leaves let go of its bytes; other workers get them."""
        for device in target.process.suspension.bytes_by_device:
            worker = self.restore.node.warm_worker(target.world, device) if device in target.moves else None
            if worker:
                worker.surrender(target.hold)

    def _agent_must_copy(self, target: Target) -> bool:
        """Tells whether no worker can have a context, or hand on what it makes, or the process take it in."""
        restore, devices = self.restore, sorted(target.bytes_by_device)
        cold = any(restore.node.warm_worker(target.world, device) is None for device in devices)
        restore.cold = restore.cold or cold
        flags = target.process.look().status.flags
        must = unexportable(flags) or target.comes_to_hidden() or not all(map(target.attach, devices))
        restore.course.mark("attached")
        return must

    def _create(self, undo: Transaction, target: Target) -> bool:
        """Makes memory with the workers.

        Returns False where there is no room for it beside their own contexts, which they have given back then.
        """
        try:
            for worker in target.workers():
                undo.push("create", partial(self.uncreate, target, worker))
                self._entrust(target, worker)
            for worker in target.workers():
                self._create_one(target, worker)
        except NoRoom:
            if not target.process.copied_out or not target.without_contexts():  # else there was room for them before
                raise
            return False
        return True

    def _entrust(self, target: Target, worker: WorkerPeer) -> None:
        """Gives the sealed table and the segments of a process to a worker that does not have them."""
        image = self.restore.image
        if image or _elsewhere(target, worker):
            worker.surrender(target.hold)  # what it knows of the process is of another device, or in no image
            if image and (ahead := image.ahead(target.pid, target.left(worker.device), worker)):
                worker.coming.inherit(target.copy_name, ahead)
        elif worker.copies.knows(target.copy_name):
            return
        fds = image.tables(target.pid) if image else target.staged()
        try:
            worker.copies.reclaim(target.copy_name, target.owner, target.left(worker.device), fds)
        finally:
            close_all(fds)

    def _create_one(self, target: Target, worker: WorkerPeer) -> None:
        """Makes room by evicting resident memory and giving up snapshots, before it refuses. Raises NoRoom."""
        create = partial(self._take_or_create, target, worker)
        if self._made_way(worker.device, create):
            return
        node = self.restore.node
        node.free_room([worker.device])
        quietly("leave", lambda: node.leave(worker.device, target.control.holders(worker.device)))
        with short_on(worker.device):
            create()

    def _take_or_create(self, target: Target, worker: WorkerPeer) -> None:
        ballast, node = self.restore.ballast(target, worker.device), self.restore.node
        with node.turns.making([worker.device], self.restore.course.left(node.config.control_s)):
            there = worker.handles.create(target.copy_name, ballast)
        if there:
            self.restore.resident[target.pid, worker.device] = there

    def _made_way(self, device: str, create: Callable[[], object]) -> bool:
        """Creates; evicts other jobs where there is no room, one after the other. Returns whether that was enough."""
        while True:
            try:
                create()
            except NoRoom as short:
                if not self._evict(device, short.missing or 1):
                    return False
            else:
                return True

    def _evict(self, device: str, nbytes: int) -> int:
        """Evicts resident memory of jobs that do not come back now. Returns its bytes."""
        own = [target.hold for target in self.restore.owners]
        return self.restore.node.make_way(device, nbytes, own)

    def uncreate(self, target: Target, worker: WorkerPeer) -> None:
        anew = self.restore.image or _elsewhere(target, worker)
        quietly("uncreate", partial(worker.surrender if anew else worker.handles.uncreate, target.hold))

    def refuse_without_room(self) -> None:
        """Asks the devices, as late as possible, for the room that no worker holds. Raises NoRoom."""
        restore, needs = self.restore, Counter[str]()
        for target in restore.targets:
            devices = {*target.bytes_by_device, *target.ballast_by_device}
            for device in devices if target.copy is not None else devices - {*target.bytes_by_device}:
                needs[device] += target.bytes_by_device.get(device, 0) + restore.ballast(target, device)
        if +needs:
            free = partial(restore.targets[0].free_bytes, needs)
            for device, short in (needs - Counter(free())).items():
                self._evict(device, short)
            if needs - Counter(free()):
                restore.node.free_room(needs)
            refuse_without_room(needs, free())


def _elsewhere(target: Target, worker: WorkerPeer) -> bool:
    return target.left(worker.device) != worker.device
