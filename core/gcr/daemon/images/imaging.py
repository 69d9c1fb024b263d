"""Images that the daemon has made, each by a helper process of its own.

claimed   beside the checkpoint's PREPARE; before anything stops the name must be claimed and the store usable
parent    of a job that runs on: the image before says which chunks need not be copied
lent      once the job is suspended, or goes on: the helper holds the copy still, also if the job ends
written   in the background; the image is there when its manifest is, whether the daemon lives to hear of it or not
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.api import jobevents
from gcr.api.requests import CheckpointRequest
from gcr.daemon.images.claim import POLL, Claim
from gcr.daemon.images.order import ImageOrder, Told, nothing_to_image, place_of
from gcr.daemon.images.silence import Reading, Unhurried, event_of
from gcr.daemon.permission import Acting, Caller, acting_for
from gcr.engine.duplicates import staged_with
from gcr.engine.node import Course, phases
from gcr.engine.side_by_side import on_thread
from gcr.engine.target import Target
from gcr.engine.tidying import quietly
from gcr.errors import GcrError, Interrupted, PeerGone, typed
from gcr.image.files.manifest import Manifest
from gcr.imageerrors import HashMissed, ImageFailed, NoSuchImage, NotDurable
from gcr.job.roundimages import is_of_migration
from gcr.job.states import State
from gcr.parked import place_of as place_of_parked
from gcr.peers.image import ImagePeer
from gcr.peers.waiting import Patience
from gcr.protocol.operations.image import ImagedAs, ParentFound, Write, Written
from gcr.protocol.operations.operation import Done
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")

COMMIT_S = 600.0  # of silence while a file system without direct writes brings all of a pack to its disk
NO_PARENT = ParentFound(None, None)
NO_TIMEOUT = 7 * 86400.0  # a disk may be slow; the helper ends when it is done, fails or dies


class Imaging(Struct, eq=False):
    """One image of one checkpoint. `close` it unless it is `begun`: then nothing of it is left.

    `begun`: it is to be written, in the background. `streamed`: the host has no room for its bytes. `upon`: its parent,
    and why that is no newer image, once the parent was looked for. `facts`: of its manifest. `holding`: brings bytes to
    the store. `cost` and `durable_s` are known once it is durable. `failed`: why it was not written.
    """

    order: ImageOrder
    claim: Claim
    begun: bool = False
    streamed: bool = False
    upon: ParentFound = NO_PARENT
    facts: Write | None = None
    holding: "Future[object] | None" = None
    cost: Written | None = None
    durable_s: float | None = None
    failed: GcrError | None = None
    done: Event = field(default_factory=Event)
    progress: Done | None = None

    @property
    def error(self) -> GcrError | None:
        """Why there is no such image: its name was not claimed, or it was not written."""
        return self.failed or self.claim.error

    @property
    def state(self) -> str:
        return "writing" if not self.done.is_set() else "failed" if self.error else "durable"

    # ---- before the job stops -----------------------------------------------------------------------------------

    def may_begin(self, targets: Sequence[Target], course: Course) -> None:
        """Raises UnsupportedState, NoRoom, Interrupted, DeadlinePassed, and as `ready`, before anything stops."""
        if not (self.order.parks or any(target.bytes_by_device for target in targets)):
            raise nothing_to_image(targets[0].process.job, self.order.stays)
        self.claim.await_begun(course)
        self.ready()
        self.claim.look_at_room([sum(target.bytes_by_device.values()) for target in targets], course)

    def ready(self) -> ImagePeer:
        """Returns the helper, which has claimed the name. Raises as `Claim.ready`."""
        return self.claim.ready()

    def baselines(self, course: Course, targets: Sequence[Target]) -> dict[int, int]:
        """Returns, by pid, descriptors of the parent's chunks, the caller's; of the key alone where there is no parent.

        Raises as `build_upon` does.
        """
        peer = self.build_upon(course, targets)
        found: dict[int, int] = {}
        try:
            for target in targets:
                found[target.pid] = peer.baseline(target.pid)
        except BaseException:
            close_all([*found.values()])
            raise
        return found

    def build_upon(self, course: Course, targets: Sequence[Target]) -> ImagePeer:
        """Has the helper look for the newest image of the same processes. Returns the helper.

        Raises StoreUnusable, Interrupted, DeadlinePassed.
        """
        peer, who = self.ready(), [target.process.identity for target in targets]
        reading = Reading(self.claim.store.path, course, self.order.patience)
        self.upon = ParentFound(*peer.parent(who, course.left(NO_TIMEOUT), reading))
        return peer

    # ---- once it stands still -----------------------------------------------------------------------------------

    def write_staged(self, targets: Sequence[Target], created: float, course: Course) -> None:
        """Writes the image of a job that was just suspended. Returns when it may come back; `failed` has the error."""
        try:
            with_data = [t for t in targets if t.bytes_by_device and t.process.state != State.EXITED]
            for target in with_data:
                self._lend(target, _staged(target), partial=False)
            self.write(with_data, created, course)
        except Exception as error:  # the job is suspended, with or without its image
            self.fail(error)
            self.close()

    def lend(self, target: Target, fds: list[int]) -> None:
        """Takes the descriptors of a copy for this image alone; its bytes stay what they are from here on."""
        self._lend(target, fds, partial=True)

    def _lend(self, target: Target, fds: list[int], partial: bool) -> None:
        try:
            self.ready().lend(target.pid, fds, partial)
        finally:
            close_all(fds)

    def write(self, targets: Sequence[Target], created: float, course: Course, root: int | None = None) -> None:
        """Has the bytes written that these targets lent, in the background.

        root: of the job's processes, which run on; if the image is of a migration, their host memory is written, too
        """
        tree = root if is_of_migration(self.order.name) else None
        self.facts, self.begun = replace(_facts(targets, created, course), tree=tree), True
        Thread(target=self._write, args=(self.facts,), name="gcr-image", daemon=True).start()

    def lend_held(self, targets: Sequence[Target]) -> Sequence[Target]:
        """Lends the staged copies of a suspended job that are not lent yet. Returns the targets that have any.

        Their agents must not have left: one may have to be asked. Raises PeerGone …
        """
        with_data = [target for target in targets if target.bytes_by_device]
        for target in with_data:
            if target.pid not in self.ready().lent:
                self._lend(target, _staged(target), partial=False)
        return with_data

    def begin_held(self, targets: Sequence[Target], course: Course) -> None:
        """Begins on a thread to bring staged device memory to the store; `write_held` waits for the end.

        The targets are lent when this returns. Nothing of them is published. Raises PeerGone …
        """
        with_data = self.lend_held(targets)
        self.facts = _facts(with_data or targets, time.time(), course)
        ahead = is_of_migration(self.order.name)
        written = partial(self.ready().write_held, self.facts, ahead, NO_TIMEOUT, _watched(self, course))
        self.holding = on_thread("gcr-hold", written)

    def write_held(self, targets: Sequence[Target], created: float, course: Course) -> None:
        """Brings the device memory of a suspended job to the store. There is no image before `publish`.

        Raises StoreUnusable, PeerGone …
        """
        if self.holding is None:
            self.begin_held(targets, course)
        assert self.holding
        self.holding.result()
        begun, now = self.facts, _facts(targets, created, course)
        assert begun
        self.facts = replace(now, processes={**begun.processes, **now.processes})  # one may have ended meanwhile

    def give_up_held(self) -> None:
        """Ends the helper if it still brings bytes to the store: a slow disk would hold up the way back."""
        if self.holding and not self.holding.done():
            quietly("give the image up", lambda: self.ready().kill())

    def publish(self, folder: Path, course: Course, left: bool = False) -> None:
        """Adds the files of the processes, and makes the image durable. Raises as `write_held`, NotDumped.

        left: private memory is in the processes still
        """
        assert self.facts
        self._is_durable(self.ready().add_folder(str(folder), self.facts, left, NO_TIMEOUT, _watched(self, course)))

    def write_streamed(self, targets: Sequence[Target], course: Course, patience: Patience) -> None:
        """Finishes an image that came through a ring: it is durable when this returns.

        Raises StoreUnusable, PeerGone …
        """
        with_data = [target for target in targets if target.bytes_by_device]
        self.facts = _facts(with_data, time.time(), course)
        self._is_durable(self.ready().write(self.facts, NO_TIMEOUT, patience))

    # ---- in the background --------------------------------------------------------------------------------------

    def _write(self, facts: Write) -> None:
        try:
            cost = self._written(facts)
        except Exception as error:  # the thread ends here: `failed` is the only way to tell
            self.fail(error)
        else:
            self._is_durable(cost)
        self.close()

    def _written(self, facts: Write) -> Written:
        """Returns the image's cost. A helper that died may have published it just before; then it is made durable."""
        peer = self.ready()
        told = partial(setattr, self, "progress")
        try:
            return peer.write(facts, NO_TIMEOUT, Unhurried(told, self.order.patience, peer.kill))
        except PeerGone as gone:
            with suppress(NoSuchImage):
                manifest = self._published()
                if manifest.created == facts.created:
                    costs, refused = manifest.costs.uncompressed(), self.upon.refused
                    return Written(**costs, parent_refused=refused, host_bytes=manifest.host_bytes)
            raise gone

    def _published(self) -> Manifest:
        """Returns the manifest as another helper reads it, which makes durable what the first has published."""
        helper = self.order.start()
        try:
            manifest = helper.manifest(self.claim.store, self.order.name, self.order.patience, Unhurried())
            helper.sync(self.claim.store, self.order.patience)
            return manifest
        finally:
            helper.channel.close()

    def _is_durable(self, cost: Written) -> None:
        self.durable_s = time.monotonic() - self.order.began
        self.cost, self.upon = cost, ParentFound(self.upon.parent, cost.parent_refused)
        order, written = self.order, cost.bytes_written
        order.told.hear(
            jobevents.ImageWritten(job=order.job, image=order.name, durable_s=self.durable_s, bytes_written=written)
        )
        self.done.set()

    def fail(self, error: Exception) -> None:
        """Notes that there will be no such image."""
        order, self.failed = self.order, typed(error)
        if self.failed is not error:
            log.error("job %s: image %s met an error without a type", order.job, order.name, exc_info=error)
        text = self.failed.message[: jobevents.TEXT]
        order.told.hear(jobevents.ImageFailed(job=order.job, image=order.name, code=self.failed.code, message=text))
        self.done.set()

    def close(self) -> None:
        """Has the helper end once it has written what it began; does not wait for that."""
        self.claim.close()

    # ---- for callers --------------------------------------------------------------------------------------------

    def wait(self, course: Course) -> None:
        """Waits until it is durable. Raises as `check`; Interrupted and NotDurable, and it is written all the same."""
        while not self.done.wait(POLL):
            course.progress(event_of("writing", self.progress))
            if course.cancelled.is_set():
                raise Interrupted(self._still_written())
            if time.monotonic() > course.began + course.timeout:
                raise NotDurable(self._still_written(), hint="gcr ps")
        self.check()

    def _still_written(self) -> str:
        where = "the job runs on" if self.order.stays else "the job is suspended"
        return f"{where}; image {self.order.name} is still being written"

    def check(self) -> None:
        """Raises ImageFailed, HashMissed if that is known by now."""
        if self.error:
            kind = HashMissed if isinstance(self.error, HashMissed) else ImageFailed
            raise kind(f"image {self.order.name} was not written: {self.error.message}", hint=self.error.hint)


def asked_for(
    request: CheckpointRequest,
    key: Sequence[int],
    helper: Callable[[Acting], ImagePeer],
    began: float,
    patience: float,
    caller: Caller,
    former: list[Imaging],
    told: Told | None = None,
) -> Imaging | None:
    """Begins the image that a request wants. `key`: see `place_of`. Raises UsageError, NotOurs.

    former: those of earlier attempts at the request; the new one is added to them.
    told: hears what becomes of the image; None: the log alone
    """
    if not request.image:
        return None
    acting = acting_for(caller)
    order = ImageOrder(
        request.image,
        partial(helper, acting),
        began,
        patience,
        stays=request.leave_running,
        whole=request.whole or request.container,
        parks=place_of_parked(request.store or "") is not None,
        max_bytes_per_s=request.max_bytes_per_s,
        told=told or Told(str(request.target)),
        user=(caller.uid, caller.gid) if acting.caller else None,
    )
    after = former[-1].claim if former else None
    former.append(Imaging(order, Claim(order, place_of(request, key).kept(), after)))
    return former[-1]


def _watched(imaging: Imaging, course: Course) -> Reading:
    return Reading(imaging.claim.store.path, course, max(COMMIT_S, imaging.order.patience))


def _facts(targets: Sequence[Target], created: float, course: Course) -> Write:
    """Returns the facts of the job that stand in its image, besides the bytes."""
    world = targets[0].world
    return Write(
        job=targets[0].process.job,
        backend=world.backend,
        simulated=world.simulated,
        models={device.uuid: device.name for device in targets[0].node.control(world).devices()},
        processes={target.pid: ImagedAs(target.process.identity.stack, target.generation or 0) for target in targets},
        created=created,
        timings=phases(course.marks, course.began),
    )


def _staged(target: Target) -> list[int]:
    """Returns sealed tables and segments from the keeper, which answers also if the process was stopped meanwhile."""
    kept = staged_with(target.keeper(), target.pid, target.transaction)
    return kept or target.process.agent.unstage(target.transaction)
