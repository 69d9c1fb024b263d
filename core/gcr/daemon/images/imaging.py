"""Images as the daemon has them made, and reads them: each by a helper process of its own.

begun     beside the checkpoint's PREPARE; before anything stops the name must be ours and the store usable
parent    of a job that runs on: the image before says which chunks need not be copied
lent      once the job is suspended, or goes on: the helper holds still what was copied, whatever becomes of the job
written   in the background; the image is there when its manifest is, whether we live to hear of it or not
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from gcr import units
from gcr.api.requests import CheckpointRequest, ImageRequest
from gcr.daemon.images.silence import Reading, Unhurried, answering
from gcr.daemon.permission import Acting, Caller, acting_for
from gcr.engine.node import Course, phases
from gcr.engine.target import Target
from gcr.errors import (
    GcrError,
    HashMissed,
    ImageFailed,
    Interrupted,
    NoRoom,
    NoSuchImage,
    NotDurable,
    PeerGone,
    UnsupportedState,
    UsageError,
    typed,
)
from gcr.image.files.manifest import COSTS, Cut, Manifest
from gcr.image.files.smallfiles import least_bytes
from gcr.image.store.location import folder_of
from gcr.job.states import State
from gcr.memory.escrow import staged_with
from gcr.peers.image import ImagePeer, StorePlace
from gcr.peers.waiting import Patience
from gcr.processes import alive, identify
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")

POLL = 0.05
NO_TIMEOUT = 7 * 86400.0  # a disk may be slow; the helper ends when it is done, fails or dies
UNKNOWN = dict.fromkeys((*COSTS, "dedup_ratio"))


@dataclass(slots=True)
class Imaging:
    """One image of one checkpoint. `close` it unless it is `begun`: then nothing of it is left."""

    name: str
    store: StorePlace
    start: Callable[[], ImagePeer]
    began: float  # by the monotonic clock: when the checkpoint was asked for
    patience: float  # seconds that the store may keep silent when it is asked to take an image
    stays: bool = False  # the job runs on
    max_bytes_per_s: float | None = None
    job: str = ""  # as it was asked for, by name or pid
    user: tuple[int, int] | None = None  # uid and gid of the helper, where it is not the daemon's own user's
    after: "Imaging | None" = None  # of an earlier attempt, which is closed: its helper has the name until it has ended
    streamed: bool = False  # the host has no room for its bytes
    begun: bool = False  # to be written, in the background
    cost: Mapping[str, Any] | None = None  # of one that is durable
    parent: str | None = None  # as far as it is known
    parent_refused: str | None = None  # why it is no newer image
    created: float = 0.0  # as its manifest has it
    durable_s: float | None = None
    error: GcrError | None = None
    done: Event = field(default_factory=Event)
    progress: Mapping[str, Any] = field(default_factory=dict)
    _peer: ImagePeer | None = None
    _free: int | None = None  # bytes, where the store is
    _over: Event = field(default_factory=Event)
    _begun: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _starting: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._starting = Thread(target=self._begin, name="gcr-image", daemon=True)
        self._starting.start()

    @property
    def state(self) -> str:
        return "writing" if not self.done.is_set() else "failed" if self.error else "durable"

    def _begin(self) -> None:
        try:
            if self.after:
                self.after.await_end(self.patience)
            self._peer = self.start()
            if self._over.is_set():  # whoever closed us may not have seen it
                self._peer.channel.close()
            with answering(self.store.path, self.patience):
                self._free = self._peer.begin(self.store, self.name, self.max_bytes_per_s, self.patience)
        except GcrError as error:
            self.error = error
        except OSError as error:
            self.error = PeerGone(f"no helper for image {self.name}: {error}")
        except Exception as error:  # a mistake of ours: without an error here the checkpoint would say that it is done
            log.exception("job %s: image %s was not begun", self.job, self.name)
            self.error = typed(error)
        finally:
            self._let_go_of_key(self._begun)

    def may_begin(self, targets: Sequence[Target], course: Course) -> None:
        """Nothing speaks against it. Raises UnsupportedState, NoRoom, Interrupted, DeadlinePassed, and as `ready`."""
        if not any(target.bytes_by_device for target in targets):
            raise nothing_to_image(targets[0].process.job, self.stays)
        while self._starting.is_alive():
            course.left(POLL)
            self._starting.join(POLL)
        self.ready()
        self._look_at_room(targets, course)

    def _look_at_room(self, targets: Sequence[Target], course: Course) -> None:
        """Raises NoRoom where the image cannot fit; says so to the caller where it may not."""
        total = sum(sum(target.bytes_by_device.values()) for target in targets)
        if self._free is None or self._free >= total:
            return
        refuse_full(self.store.path, least_bytes(total), self._free)
        text = f"the image takes up to {units.size(total)}, and {self.store.path} has {units.size(self._free)} free"
        log.warning("job %s: %s", self.job, text)
        course.tell("checking", message=text)

    def ready(self) -> ImagePeer:
        """The helper has claimed the name. Raises ImageExists, StoreUnusable, UnsafeRuntime, PeerGone."""
        self._starting.join()
        if self.error:
            raise self.error
        assert self._peer
        return self._peer

    def write_staged(self, targets: Sequence[Target], created: float, course: Course) -> None:
        """Of a job that was just suspended; returns when it may come back. What goes wrong is in `error`."""
        try:
            with_data = [t for t in targets if t.bytes_by_device and t.process.state != State.EXITED]
            for target in with_data:
                self._lend(target, _staged(target), partial=False)
            self.write(with_data, created, course)
        except Exception as error:  # the job is suspended, whatever becomes of its image
            self.fail(error)
            self.close()

    def baselines(self, course: Course, targets: Sequence[Target]) -> dict[int, int]:
        """By pid, descriptors of what the parent has of these, the caller's; none where there is no parent.

        Raises as `build_upon` does.
        """
        peer = self.build_upon(course, targets)
        found: dict[int, int] = {}
        try:
            for target in targets if self.parent else ():
                found[target.pid] = peer.baseline(target.pid)
        except BaseException:
            close_all([*found.values()])
            raise
        return found

    def build_upon(self, course: Course, targets: Sequence[Target]) -> ImagePeer:
        """The newest image of the same processes is looked for. Its helper.

        Raises StoreUnusable, Interrupted, DeadlinePassed.
        """
        peer, who = self.ready(), [target.process.identity for target in targets]
        reading = Reading(self.store.path, course, self.patience)
        self.parent, self.parent_refused = peer.parent(who, course.left(NO_TIMEOUT), reading)
        return peer

    def lend(self, target: Target, fds: list[int]) -> None:
        """Takes the descriptors of a copy for this image alone; its bytes stay what they are from here on."""
        self._lend(target, fds, partial=True)

    def _lend(self, target: Target, fds: list[int], partial: bool) -> None:
        try:
            self.ready().lend(target.pid, fds, partial)
        finally:
            close_all(fds)

    def write(self, targets: Sequence[Target], created: float, course: Course) -> None:
        """What was lent of these, in the background."""
        facts = self._described(targets, created, course)
        self.begun = True
        Thread(target=self._write, args=(facts,), name="gcr-image", daemon=True).start()

    def _described(self, targets: Sequence[Target], created: float, course: Course) -> Mapping[str, Any]:
        self.created = created
        return {**_facts(targets), "created": created, "timings": phases(course.marks, course.began)}

    def write_streamed(self, targets: Sequence[Target], course: Course, patience: Patience) -> None:
        """What has passed: the image is durable when this returns. Raises StoreUnusable, PeerGone …"""
        with_data = [target for target in targets if target.bytes_by_device]
        facts = self._described(with_data, time.time(), course)
        self._is_durable(self.ready().write(facts, NO_TIMEOUT, patience))

    def remove_published(self) -> None:
        """Of a helper that died. Raises nothing: what stays is of no use to anybody."""
        try:
            helper = self.start()
            try:
                helper.remove(self.store, self.name, self.created, self.patience)
            finally:
                helper.channel.close()
        except (GcrError, OSError) as error:
            log.warning("job %s: image %s was not taken back: %s", self.job, self.name, error)

    def _write(self, facts: Mapping[str, Any]) -> None:
        try:
            cost = self._written(facts)
        except Exception as error:  # nobody else would hear of it
            self.fail(error)
        else:
            self._is_durable(cost)
        self.close()

    def _is_durable(self, cost: Mapping[str, Any]) -> None:
        self.durable_s = time.monotonic() - self.began
        stored = cost["bytes_written"]
        self.cost = {**cost, "dedup_ratio": cost["bytes_total"] / stored if stored else None}
        self.parent_refused = self.cost.get("parent_refused", self.parent_refused)
        line = "job %s: image %s is durable after %.2f s: %d bytes written"
        log.info(line, self.job, self.name, self.durable_s, stored)
        self.done.set()

    def _written(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """What it cost. A helper that died may have published it just before; then it is there, and made durable."""
        peer = self.ready()
        try:
            return peer.write(facts, NO_TIMEOUT, Unhurried(self._tell, self.patience, peer.kill))
        except PeerGone as gone:
            with suppress(NoSuchImage):
                manifest = self._published()
                if manifest.created == facts["created"]:
                    return manifest.costs()
            raise gone

    def _published(self) -> Manifest:
        """As another helper reads it, who may have the key, and makes durable what the first has published."""
        helper = self.start()
        try:
            manifest = helper.manifest(self.store, self.name, self.patience, Unhurried())
            helper.sync(self.store, self.patience)
            return manifest
        finally:
            helper.channel.close()

    def _tell(self, report: Mapping[str, Any]) -> None:
        self.progress = report

    def fail(self, error: Exception) -> None:
        """There will be no such image."""
        known = isinstance(error, GcrError)
        line = "job %s: image %s was not written: %s"
        log.error(line, self.job, self.name, error, exc_info=None if known else error)
        self.error = typed(error)
        self.done.set()

    def wait(self, course: Course) -> None:
        """Until it is durable. Raises as `check`; Interrupted and NotDurable, and it is written all the same."""
        while not self.done.wait(POLL):
            course.tell("writing", **self.progress)
            if course.cancelled.is_set():
                raise Interrupted(f"{self._where()}; image {self.name} is still being written")
            if time.monotonic() > course.began + course.timeout:
                raise NotDurable(f"{self._where()}; image {self.name} is still being written", hint="gcr ps")
        self.check()

    def _where(self) -> str:
        return "the job runs on" if self.stays else "the job is suspended"

    def check(self) -> None:
        """Raises ImageFailed, HashMissed if that is known by now."""
        if self.error:
            kind = HashMissed if isinstance(self.error, HashMissed) else ImageFailed
            raise kind(f"image {self.name} was not written: {self.error.message}", hint=self.error.hint)

    def row(self) -> dict[str, Any]:
        """What `gcr ps` says of it."""
        error = self.error.message if self.error else None
        return {"name": self.name, "state": self.state, "durable_s": self.durable_s, "error": error}

    def close(self) -> None:
        """The helper finishes what it has begun to write, and ends. Nobody waits for that."""
        self._let_go_of_key(self._over)
        if self._peer:
            self._peer.channel.close()

    def await_end(self, patience: float) -> None:
        """Until its helper has ended, for so many seconds at most."""
        end = time.monotonic() + patience
        self._starting.join(patience)
        helper = identify(self._peer.pid) if self._peer else None
        while helper and alive(helper) and time.monotonic() < end:
            time.sleep(POLL)

    def _let_go_of_key(self, came: Event) -> None:
        """By whoever comes last: the name may still be being claimed when nothing more is wanted."""
        with self._lock:
            came.set()
            if not (self._over.is_set() and self._begun.is_set()):
                return
            key, self.store = self.store.key, StorePlace(self.store.path)
        close_all(key)

    def report(self) -> dict[str, Any]:
        """The fields of docs/contract.md §4 that a checkpoint with an image has besides."""
        return {
            "image": self.name,
            "cut": Cut.DEVICE.value,
            "durable_s": self.durable_s,
            **UNKNOWN,
            "parent": self.parent,
            **(self.cost or {}),
            "parent_refused": self.parent_refused,
        }


def asked_for(
    request: CheckpointRequest,
    key: Sequence[int],
    helper: Callable[[Acting], ImagePeer],
    began: float,
    patience: float,
    caller: Caller,
    former: list[Imaging],
) -> Imaging | None:
    """The image that a request wants, begun. `key`: see `place_of`. Raises UsageError, UnsupportedState, NotOurs.

    former: those of earlier attempts at the request; it is added to them.
    """
    if request.stop:
        text = "an image holds device memory alone, which is of no use to anybody once its process has ended"
        raise UnsupportedState(text, hint="the same without --stop: the job stays suspended, and off its device")
    if not request.image:
        return None
    acting = acting_for(caller)
    imaging = Imaging(
        request.image,
        place_of(request, key).kept(),
        partial(helper, acting),
        began,
        patience,
        stays=request.leave_running,
        max_bytes_per_s=request.max_bytes_per_s,
        job=str(request.target),
        user=(caller.uid, caller.gid) if acting.caller else None,
        after=former[-1] if former else None,
    )
    former.append(imaging)
    return imaging


def refuse_full(store: str, least: int, free: int) -> None:
    """Raises NoRoom."""
    if free < least:
        text = f"the image takes {units.size(least)} at least, and {store} has {units.size(free)} free"
        hint = "gcr rm or gcr prune makes room; --store names another folder; without --image no room is needed there"
        raise NoRoom(text, missing=least - free, hint=hint)


def nothing_to_image(job: str, stays: bool) -> UnsupportedState:
    """The refusal of an image of a job without device memory. stays: the job was to run on."""
    text = f"an image holds device memory, and no process of {job} has any now"
    later = f"gcr ps {job} shows its device memory: make the image when there is some"
    return UnsupportedState(text, hint=later if stays else f"gcr checkpoint {job}, without --image, suspends it")


def place_of(request: ImageRequest, key: Sequence[int]) -> StorePlace:
    """Returns the store of a request; `key`: the descriptors that came with it, its caller's. Raises UsageError."""
    store = folder_of(request.store or "")
    if not Path(store).is_absolute():
        raise UsageError(f"{store!r} is no place of a store: its whole path is")
    if len(key) != request.encrypted:
        raise UsageError("the key of the store did not arrive")
    return StorePlace(store, key)


def _facts(targets: Sequence[Target]) -> dict[str, Any]:
    """What an image says of its job, besides the bytes."""
    world = targets[0].world
    return {
        "job": targets[0].process.job,
        "backend": world.backend,
        "simulated": world.simulated,
        "models": {device.uuid: device.name for device in targets[0].node.control(world).devices()},
        "processes": {
            str(target.pid): {"stack": target.process.identity.stack, "generation": target.generation}
            for target in targets
        },
    }


def _staged(target: Target) -> list[int]:
    """Its sealed tables and segments, from its keeper, who answers also when the process was stopped meanwhile."""
    return staged_with(target.keeper(), target.pid) or target.process.agent.unstage(target.transaction)
