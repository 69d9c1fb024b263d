"""Processes that have no agent: which drivers they see, and have."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from pathlib import Path

from gcr.daemon.jobs import Job, Program
from gcr.daemon.permission import Caller
from gcr.daemon.worlds import backend_name, simulated_world
from gcr.declarations import declarations
from gcr.engine.node import World
from gcr.errors import GcrError, NoSuchJob, NotAGpuProcess, NotOurs, UnsupportedState
from gcr.job.process import Process
from gcr.job.states import State, Way
from gcr.names import DEFAULT_BACKEND
from gcr.peers.control import ControlPeer
from gcr.processes import alive, descendants, file_access, identify, maps_contain, open_files, owner_uid

log = logging.getLogger("gcr.daemon")

HELLO_SECONDS = 0.5
LATE_HELLO_SECONDS = 4.0  # on a machine that is busy
POLL = 0.01
Left = Callable[[float], float]
"""As a Course has it: raises where the caller's time is up, or it no longer wants it."""


def world_of_process(pid: int, otherwise: str | None = None) -> World:
    """The simulated world that the environment of a process of our own user names; for any other the real drivers.

    otherwise: the vendor of one that has no device open, or that may not be looked into; else DEFAULT_BACKEND.
    Raises NotOurs for another user's process in a simulated world.
    """
    env = environment_of(pid)
    if vendor := env.get("GCR_SIMULATE"):
        return simulated_world(vendor, env, sole_user(pid))
    return World(_vendor_of(pid) or otherwise or DEFAULT_BACKEND)


def foreign_job(pid: int, backend: str | None, caller: Caller, unknown: NoSuchJob | None = None) -> Job:
    """Returns a process that gcr did not start, as a job of its own. Raises NoSuchJob, NotOurs, UsageError.

    unknown: says how the job ended that had the process, if it does
    """
    identity = identify(pid)
    if identity is None or not alive(identity):
        raise _ended(pid, unknown)
    if os.getuid() not in (0, owner_uid(pid)):
        raise NotOurs(f"process {pid} belongs to another user")
    owner = sole_user(pid)
    if not caller.rules:
        caller.check_owner(owner, f"process {pid}")
    name = str(pid)
    world = world_of_process(pid, backend_name(backend) if backend else None)
    job = Job(name, token="", world=world, program=Program(pid=pid), owner=owner)
    job.processes[pid] = Process(name, identity, way=Way.DRIVER)
    return job


def _ended(pid: int, unknown: NoSuchJob | None) -> NoSuchJob:
    if unknown and unknown.state == State.EXITED:
        return unknown
    text = f"there is no process {pid}: it has ended, or the number is another one"
    return NoSuchJob(text, state=State.EXITED, hint="gcr ps --all")


def sole_user(pid: int) -> int:
    """The one user that a process has as real, effective and saved user; -1 where they differ, or it is gone."""
    users = set(file_access(pid).user_ids)
    return users.pop() if len(users) == 1 else -1


def refuse_without_driver(pid: int, world: World) -> None:
    """Raises NotAGpuProcess for a process that has no driver loaded and no device open; no driver is asked for it.

    A backend that declares nothing is left to its driver.
    """
    if world.simulated or world.backend not in declarations():
        return
    try:
        uses = _maps_driver(pid) or _opened(pid)
    except PermissionError:
        return
    if not uses:
        raise NotAGpuProcess(f"process {pid} uses no device: it has no driver loaded", hint="gcr ps names the jobs")


def _vendor_of(pid: int) -> str | None:
    """Returns the vendor of the devices that the process has open; None if there are none or it may not be read."""
    try:
        return _opened(pid)
    except PermissionError:
        return None


def _opened(pid: int) -> str | None:
    """Returns the vendor of which the process has a device open. Raises PermissionError."""
    paths = ((vendor, path) for vendor, each in declarations().items() for path in each.device_files)
    return next((vendor for vendor, path in paths if open_files(pid, path)), None)


def _maps_driver(pid: int) -> str | None:
    """Returns the driver that the process has loaded. Raises PermissionError."""
    drivers = [library for each in declarations().values() for library in each.libraries]
    return next(iter(maps_contain(pid, drivers)), None)


def await_hello(job: Job, left: Left, control: Callable[[], ControlPeer]) -> Sequence[Process]:
    """Processes of the job that have made a call of a driver; none where each has yet to make its first.

    An agent may be about to connect. Raises NotAGpuProcess where no process has a driver
    loaded, and after a longer while where one has it out of the shim's reach.
    """
    began = time.monotonic()
    while not (found := job.begun) and not job.ends.finished:
        left(POLL)
        waited = time.monotonic() - began
        if waited > HELLO_SECONDS and (waited > LATE_HELLO_SECONDS or _past_gcr(job, control) is None):
            break
        time.sleep(POLL)
    if not found:
        _refuse_unheard(job, control)
    return found


def _refuse_unheard(job: Job, control: Callable[[], ControlPeer]) -> None:
    if found := _past_gcr(job, control):
        text = f"process {found[0]} has {found[1]} loaded, and gcr hears nothing of it"
        raise NotAGpuProcess(text, hint="docs/troubleshooting.md#past-gcr")
    if not job.living and not with_driver(job):
        raise NotAGpuProcess("no process of this job uses a device", hint="gcr ps")


def with_driver(job: Job) -> Mapping[int, str]:
    """Returns the driver that the program and each descendant has loaded, by pid; without those that have none."""
    found = {pid: _loaded_driver(pid) for pid in _family(job)}
    return {pid: driver for pid, driver in found.items() if driver}


def _past_gcr(job: Job, control: Callable[[], ControlPeer]) -> tuple[int, str] | None:
    """The first process, and its driver, that can use a device without a word to gcr, or does."""
    unheard = {pid: driver for pid, driver in with_driver(job).items() if pid not in job.processes}
    for pid, driver in unheard.items():
        if not _in_reach(pid):
            return pid, driver
    return next(((pid, unheard[pid]) for pid in _held_if_known(unheard, control)), None)


def _in_reach(pid: int) -> bool:
    """Returns True if the shim is loaded and has a daemon to ask: gcr sees the first call of a driver then."""
    env = environment_of(pid)
    shim = Path(env.get("LD_PRELOAD", "").partition(":")[0]).name
    return bool(shim and env.get("GCR_SOCKET") and maps_contain(pid, [f"/{shim}"]))


def _held_if_known(pids: Collection[int], control: Callable[[], ControlPeer]) -> Counter[int]:
    """Returns bytes held, by pid; nothing if no backend can tell."""
    try:
        return _held_by(pids, control()) if pids else Counter()
    except GcrError as error:
        log.info("what processes %s hold is not known: %s", list(pids), error)
        return Counter()


def _family(job: Job) -> Sequence[int]:
    return (job.program.pid, *descendants(job.program.pid)) if job.program.pid else ()


def refuse_unheard_beside(job: Job, heard: Callable[[], Container[int]], control: ControlPeer, left: Left) -> None:
    """Refuses a job of which a process has device memory and no agent: only half of the job would leave.

    A process that began just now is given time to connect. Raises UnsupportedState.
    """
    has_a_device = _loaded_driver if job.world.simulated else _vendor_of  # a process has fewer open files than mappings
    unheard = [pid for pid in _family(job) if pid not in heard() and has_a_device(pid)]
    for pid, held in _held_by(unheard, control).items():
        if _stays_unheard(pid, heard, left):
            text = f"process {pid} of this job has {held >> 20} MiB on its device, and gcr hears nothing of it"
            raise UnsupportedState(text, hint="docs/troubleshooting.md#past-gcr")


def _held_by(pids: Collection[int], control: ControlPeer) -> Counter[int]:
    """Bytes on all devices, by their own count. The driver is asked nothing of them: a fork may be among them."""
    found = Counter[int]()
    for device in control.devices() if pids else ():
        found.update({pid: size for pid, size in control.holders(device.uuid).items() if pid in pids})
    return +found


def _stays_unheard(pid: int, heard: Callable[[], Container[int]], left: Left) -> bool:
    """After a while in which it may say a word, or end."""
    end = time.monotonic() + LATE_HELLO_SECONDS
    while pid not in heard():
        if not _lives(pid):
            return False
        if time.monotonic() > end:
            return True
        left(POLL)
        time.sleep(POLL)
    return False


def _lives(pid: int) -> bool:
    identity = identify(pid)
    return identity is not None and alive(identity)


def _loaded_driver(pid: int) -> str | None:
    try:
        return _maps_driver(pid)
    except PermissionError:
        return None


def environment_of(pid: int) -> dict[str, str]:
    """Empty for a process that is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
