"""`migrate`: one step of a job's way to another node. The daemon keeps the records; a helper does what takes long.

The helper is a process of its own for each step, and ends with its caller. It speaks to other nodes. The daemon
does not.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gcr.api.answers import Answer
from gcr.api.events import ProgressEvent
from gcr.api.migrations import (
    Abandon,
    AnyStep,
    Begin,
    Describe,
    Fill,
    Forget,
    Found,
    JobFacts,
    Look,
    Move,
    MovingTo,
    Own,
    Standing,
    Stepped,
    Warm,
    step_of,
)
from gcr.api.migrations import World as Drivers
from gcr.api.requests import CheckpointRequest, MigrateRequest
from gcr.control import ControlMeans
from gcr.converting import convert
from gcr.daemon.commands import filling, looking, whole
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.fleet import start_child
from gcr.daemon.jobs import Job
from gcr.daemon.worlds import backend_name, child_environment, simulated_world
from gcr.engine.node import Course, World
from gcr.engine.side_by_side import side_by_side
from gcr.errors import Interrupted, PeerGone, WrongState
from gcr.job.migrations import Migration, Migrations, Stage
from gcr.job.mover import Mover
from gcr.job.states import State
from gcr.migrationerrors import CannotMigrate
from gcr.processmemory import resident
from gcr.protocol.channel import Channel
from gcr.rendezvous.launch import daemon_environment

_IMAGE = "migration"  # a name for a request that is never carried out
_POLL_S = 0.1


def run(node: Coordinator, request: MigrateRequest, asked: Asked) -> Answer:
    """Takes one step. Raises UsageError for one that is none, and what the step raises."""
    match step_of(request.step):
        case Describe() as step:
            return _described(node, step, request, asked)
        case Begin() as step:
            return _begun(step)
        case Move() as step:
            return _moved(step)
        case Own() as step:
            Migrations.here().end(step.job, step.id, (Stage.ARRIVING,))
            return Found()
        case Standing() as step:
            return _standing(node, step)
        case Warm() as step:
            return _warmed(node, step)
        case Fill() as step:
            return filling.fill(node, step, _world_of(step.world), request.timeout, asked)
        case Abandon() | Forget() as step:
            node.residents.arriving.drop(step.job, step.id)  # it keeps images that are to go
            return _by_helper(step, request.timeout, asked)
        case step:
            return _by_helper(step, request.timeout, asked)


def _begun(step: Begin) -> Found:
    record = Migration(
        id=step.id,
        job=step.job,
        stage=Stage(step.stage),
        here=step.here,
        peer=step.peer,
        store=step.store,
        mover=convert(step.mover, Mover),
    )
    Migrations.here().begin(record)
    return Found()


def _moved(step: Move) -> Found:
    here = Migrations.here()
    if step.image:
        here.note_image(step.job, step.id, step.image)
    else:
        here.move(step.job, step.id, Stage(step.stage))
    return Found()


def _warmed(node: Coordinator, step: Warm) -> Found:
    """Starts what the return of the processes asks for. The control helper answers once its driver has started."""
    world = _world_of(step.world)
    starts: list[Callable[[], object]] = [partial(node.worker, world, device) for device in step.devices]
    side_by_side([lambda: node.control(world).devices(), *starts])
    return Found()


def _standing(node: Coordinator, step: Standing) -> MovingTo:
    found = Migrations.here().of(step.job)
    row = next((row for row in looking.ps(node).jobs if row.job == step.job), None)
    state = "" if row is None else "changing" if row.changing else row.state
    if found is None:
        return MovingTo(id="", stage="", peer="", images=(), state=state)
    return MovingTo(id=found.id, stage=found.stage, peer=found.peer, images=found.images, state=state)


# ---- the job that is to leave ----------------------------------------------------------------------------------------


def _described(node: Coordinator, step: Describe, request: MigrateRequest, asked: Asked) -> JobFacts:
    """Raises CannotMigrate, and as a checkpoint with `--stop` does before it touches anything."""
    job = node.jobs.find(step.job, asked.caller.may_use)
    if job.state != State.RUNNING or job.busy:
        raise WrongState(f"job {job.name} is {job.state}: it moves while it runs", state=job.state, hint="gcr restore")
    control = node.control(job.world)
    if control.means is not ControlMeans.DRIVER:
        text = f"a job on {job.world.backend} comes back on the machine that it left"
        raise CannotMigrate(text, hint="docs/migrate.md")
    control.check_move({})
    pids = _savable(node, job, request, asked)
    by_device: dict[str, int] = {}
    for process in next(row for row in looking.ps(node).jobs if row.job == job.name).processes:
        if process.device:
            by_device[process.device] = by_device.get(process.device, 0) + process.bytes
    world = Drivers(job.world.backend, job.world.simulated, dict(job.world.environment))
    host = sum(map(resident, pids))
    return JobFacts(state=job.state, world=world, pids=pids, devices=by_device, host_bytes=host)


def _savable(node: Coordinator, job: Job, request: MigrateRequest, asked: Asked) -> tuple[int, ...]:
    """Returns the pids of the job's tree. Raises CannotSave, CriuUnusable, UnsupportedState."""
    course = Course("checkpoint", node.next_transaction(), request.timeout, asked.progress, asked.cancelled)
    wanted = CheckpointRequest(target=job.name, image=_IMAGE, stop=True)
    saving = whole.begun(node, job, course, wanted)
    try:
        saving.look()
        saving.may_begin()
        return saving.seen.pids
    finally:
        saving.close()


# ---- the helper ------------------------------------------------------------------------------------------------------


def _by_helper(step: AnyStep, timeout: float, asked: Asked) -> Stepped:
    environment = child_environment(_world_of(step.world)) if isinstance(step, Look) else daemon_environment()
    process, channel = start_child("gcr.migration_helper", [], environment)
    threading.Thread(target=process.wait, name="gcr-reap", daemon=True).start()

    def told(body: dict[str, Any]) -> None:
        asked.progress(ProgressEvent.from_json(body))

    try:
        with _ended_with_caller(channel, asked.cancelled):
            body, _ = channel.call_json(
                "migrate", {"step": step.to_json(), "limit": float(timeout)}, timeout=timeout, on_progress=told
            )
    except PeerGone:
        if asked.cancelled.is_set():
            raise Interrupted("the caller has left") from None
        raise
    finally:
        channel.close()
    return Stepped(found={name: value for name, value in body.items() if name != "ok"})


def _world_of(told: Drivers) -> World:
    if told.simulated:
        return simulated_world(told.backend, told.environment, os.getuid())
    return World(backend_name(told.backend))


@contextmanager
def _ended_with_caller(channel: Channel, cancelled: threading.Event) -> Iterator[None]:
    """Ends the helper once the caller leaves."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            if cancelled.is_set():
                channel.close()
                return

    threading.Thread(target=watch, name="gcr-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()
