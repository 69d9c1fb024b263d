"""gcrd's children: one worker a (world, device), one control helper a world. Disposable; a dead one is replaced.

A child gets one end of a socket pair, a scrubbed environment and a session of its own, and ends when the socket closes.
One that answers no more, stopped by a signal, say, is as good as dead, and is made so before another takes its place.
An image helper serves one image, and if it has begun to write that ends only after it. Some helpers are started before
they are asked for (`READY`, spares.py).
"""

import logging
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Generic, TypeVar

from msgspec import Struct, field

from gcr.daemon.permission import AS_OURSELVES, Acting
from gcr.daemon.spares import Spares
from gcr.daemon.worlds import child_environment
from gcr.engine.node import World
from gcr.engine.side_by_side import side_by_side
from gcr.engine.tidying import quietly
from gcr.errors import GcrError
from gcr.peers.control import ControlPeer
from gcr.peers.criu import CriuPeer
from gcr.peers.image import ImagePeer
from gcr.peers.waiting import START_TIMEOUT
from gcr.peers.worker import WorkerPeer
from gcr.protocol.channel import Channel
from gcr.protocol.operations.operation import Ready, ask
from gcr.rendezvous.launch import daemon_environment, start_module

log = logging.getLogger("gcr.daemon")

Peer = TypeVar("Peer", WorkerPeer, ControlPeer)
END_S = 5.0  # for a child to end by itself, and once more when it was killed
READY = 2  # image helpers: a large image is read by two, and written by one
ANSWER_S = 3.0  # of patience with a child that left a call without an answer, before it is given up


class Child(Struct, Generic[Peer]):
    """One child process and the object that speaks to it."""

    process: "subprocess.Popen[bytes]"
    channel: Channel
    peer: Peer
    used_at: float = field(default_factory=time.monotonic)

    @property
    def lives(self) -> bool:
        return not self.channel.closed.is_set() and self.process.poll() is None

    def serves(self) -> bool:
        """Lives, and answers. One that does not is ended: it may go on some day, and would do what it was told then."""
        if not self.lives:
            return False
        if not self.channel.silent or self._answers():
            return True
        log.warning("child %d answers no more: it is ended", self.process.pid)
        self.process.kill()
        _end(self.process, self.channel)
        return False

    def _answers(self) -> bool:
        try:
            ask(self.channel, Ready(), timeout=ANSWER_S)
        except GcrError:
            return False
        return True


class Fleet(Struct):
    """Starts children on demand and hands out the living ones. Thread-safe; one start a child at a time."""

    _workers: dict[tuple[World, str], Child[WorkerPeer]] = field(default_factory=dict)
    _controls: dict[World, Child[ControlPeer]] = field(default_factory=dict)
    _images: Spares[ImagePeer] = field(default_factory=Spares)
    _crius: Spares[CriuPeer] = field(default_factory=Spares)
    _whole_at: float | None = None  # when processes were last saved, or made from an image
    _locks: dict[object, Lock] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def worker(self, world: World, device: str) -> WorkerPeer:
        with self._one(("worker", world, device)):
            child = self._workers.get((world, device))
            if child is None or not child.serves():
                child = self._start_worker(world, device)
                self._workers[world, device] = child
            child.used_at = time.monotonic()
            return child.peer

    def warm_worker(self, world: World, device: str) -> WorkerPeer | None:
        child = self._workers.get((world, device))
        return child.peer if child and child.serves() else None

    def control(self, world: World) -> ControlPeer:
        with self._one(("control", world)):
            child = self._controls.get(world)
            if child is None or not child.serves():
                process, channel = start_child("gcr.control_helper", [world.backend], child_environment(world))
                child = Child(process, channel, ControlPeer(channel, process.pid))
                self._controls[world] = child
            child.used_at = time.monotonic()
            return child.peer

    def image_helper(self, acting: Acting = AS_OURSELVES) -> ImagePeer:
        """One that no other has, of the daemon's user or another; it ends when its channel is closed."""
        return (None if acting.caller else self._images.take()) or self._new_image_helper(acting)

    def expect_readers(self, count: int) -> None:
        """Starts image helpers of the daemon's user, which will be asked for soon, on a thread. Raises nothing."""
        self._whole_at = time.monotonic()
        missing = partial(self._images.fill_up, count, partial(self._new_image_helper, AS_OURSELVES))
        Thread(target=partial(quietly, "start ahead", missing), name="gcr-ahead").start()

    def keep_ready(self, idle: float) -> None:
        """Starts the helpers that the next save of processes needs, or their next return. For a time without work.

        The daemon keeps them for `idle` seconds after the last one, and none before the first. Raises nothing.
        """
        if self._whole_at is None:
            return
        if time.monotonic() - self._whole_at > idle:
            self._images.end()
            self._crius.end()
            return
        quietly("start ahead", partial(self._images.fill_up, READY, partial(self._new_image_helper, AS_OURSELVES)))
        quietly("start ahead", partial(self._crius.fill_up, 1, self._new_criu_helper))

    def _new_image_helper(self, acting: Acting) -> ImagePeer:
        environment = acting.environment(daemon_environment())
        process, channel = start_child("gcr.image_helper", [], environment, acting)
        Thread(target=process.wait, name="gcr-reap", daemon=True).start()
        return ImagePeer(channel, process.pid, process.kill)

    def criu_helper(self) -> CriuPeer:
        """One that no other has; it ends when its channel is closed."""
        self._whole_at = time.monotonic()
        return self._crius.take() or self._new_criu_helper()

    def _new_criu_helper(self) -> CriuPeer:
        process, channel = start_child("gcr.criu_helper", [], daemon_environment())
        Thread(target=process.wait, name="gcr-reap", daemon=True).start()
        return CriuPeer(channel, process.pid)

    def vacate(self, ids: Collection[int], works: Callable[[World], bool]) -> None:
        """Ends each idle helper that has one of the ids, or a thread with one: processes come back under these ids.

        Another helper is started when it is asked for. A worker has memory, and stays.
        works: whether a command may be using the control helper of a world
        """
        chosen = partial(_has_one_of, ids)
        self._images.end(chosen)
        self._crius.end(chosen)
        for world, child in list(self._controls.items()):
            if not chosen(child.process.pid):
                continue
            with self._one(("control", world)):
                if not (works(world) or child.channel.awaits):
                    log.info("control helper %d has an id of a process that comes back: it is ended", child.process.pid)
                    _end(child.process, child.channel)

    def living_workers(self) -> list[WorkerPeer]:
        return [child.peer for child in list(self._workers.values()) if child.lives]

    def give_up_snapshots(self, devices: Collection[str]) -> None:
        """Has workers give up their snapshots, since the room is needed. It is free when this returns."""
        there = [worker for worker in self.living_workers() if worker.device in devices]
        side_by_side(partial(quietly, "give up snapshots", worker.give_up_snapshots) for worker in there)

    def retire(self, idle: float, busy: Callable[[World, str], bool]) -> None:
        """Ends workers that were idle for more than `idle` seconds and that no job needs; reaps the dead."""
        for key, child in list(self._workers.items()):
            if child.lives and time.monotonic() - child.used_at > idle and not busy(*key):
                log.info("worker %d of %s was idle", child.process.pid, key[1])
                child.channel.close()
            if not child.lives and child.process.poll() is not None:
                self._workers.pop(key, None)

    def leave(self, device: str, users: Collection[int], busy: Callable[[World, str], bool]) -> None:
        """Ends the workers of one device that no job needs, and waits for their ends.

        users: pids that the device counts; another vendor may know the same device by another UUID
        """
        for key, child in list(self._workers.items()):
            there = key[1] == device or child.process.pid in users
            if there and child.lives and not busy(*key):
                log.info("worker %d of %s leaves the device to a job", child.process.pid, key[1])
                _end(child.process, child.channel)
                self._workers.pop(key, None)

    def worker_of(self, pid: int) -> tuple[World, str] | None:
        """Returns the world and the device of the worker with this pid."""
        found = (key for key, child in list(self._workers.items()) if child.process.pid == pid and child.lives)
        return next(found, None)

    def close(self) -> None:
        for worker in self._workers.values():
            _end(worker.process, worker.channel)
        for control in self._controls.values():
            _end(control.process, control.channel)

    def _start_worker(self, world: World, device: str) -> Child[WorkerPeer]:
        process, channel = start_child("gcr.worker", [world.backend, device], child_environment(world))
        peer = WorkerPeer(channel, process.pid, device)
        try:
            peer.ready(START_TIMEOUT)
        except BaseException:
            channel.close()
            raise
        return Child(process, channel, peer)

    def _one(self, key: object) -> Lock:
        with self._lock:
            return self._locks.setdefault(key, Lock())


def _has_one_of(ids: Collection[int], pid: int) -> bool:
    """Returns whether the process, or a thread of it, has one of the ids."""
    return any(Path(f"/proc/{pid}/task/{id}").exists() for id in ids)


def _end(process: "subprocess.Popen[bytes]", channel: Channel) -> None:
    """Ends a child; does not wait for one that hangs in its driver until the kernel lets it end."""
    channel.close()
    if not _gone(process):
        process.kill()
        if not _gone(process):
            log.warning("child %d was killed, and has not ended", process.pid)


def _gone(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def start_child(
    module: str, arguments: list[str], environment: Mapping[str, str], acting: Acting = AS_OURSELVES
) -> tuple["subprocess.Popen[bytes]", Channel]:
    """Starts a helper; returns its process and channel. A helper that acts for another user gets no log of ours."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log_name = None if acting.caller else f"{module.split('.')[-1]}.log"
    with theirs:
        process = start_module(
            module,
            [*arguments, str(theirs.fileno())],
            environment,
            theirs.fileno(),
            log_name,
            user=acting.user,
            group=acting.group,
            extra_groups=acting.extra_groups,
        )
    return process, Channel(ours, name=f"{module} {process.pid}").start()
