"""A job that arrives, or that comes back: its images, its processes, and the end of what is not wanted any more."""

import logging
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from msgspec.structs import asdict, replace

from gcr.api.events import ProgressEvent
from gcr.api.listings import JobInfo
from gcr.api.migrations import Abandon, Fill, Filled, Forget, Found, Pull, Pulled, RanOn, Run
from gcr.api.requests import MigrateRequest
from gcr.errors import DeadlinePassed, GcrError, Lost, RolledBack
from gcr.image.store.location import is_none, store_path
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage, StoreBusy
from gcr.job import runs
from gcr.job.migrations import Migrations, Stage
from gcr.job.runs import How
from gcr.migration_helper import commands
from gcr.migration_helper.telling import Tell
from gcr.migrationerrors import NoSuchMigration
from gcr.rendezvous.client import Client
from gcr.trees import end_all, tree_of

log = logging.getLogger("gcr.migration")

CLEAN_S = 5.0
GRACE_S = 30.0  # for the daemon to take back a fill that was too slow
REST_S = 60.0  # for a job to come to rest, or to end
_LOOK_S = 0.02
_AWAIT_S = 1.0  # that the source may take to say that it has the image; then it is asked again
_RESTORES = (  # imports of the command that makes processes
    *("gcr.cli.commands.restore", "gcr.cli.reviving", "gcr.cli.bringing", "gcr.supervisor.process"),
    *("gcr.image.read.folder", "gcr.image.read.reader", "gcr.image.store.store", "gcr.image.disk.failing"),
    *("google.protobuf.descriptor_pool", "google.protobuf.message_factory", "google.protobuf.descriptor_pb2"),
)
_RUNNING, _SUSPENDED = "running", ("suspended", "data_suspended")
_SAVED = (*_SUSPENDED, "stopped", "restoring")  # states in which a program that ends is in its image still


def pulled(step: Pull, limit: float, tell: Tell) -> Pulled:
    """Pulls an image, and with `revive` makes its processes again. Raises as `gcr pull` and `gcr restore --image`."""
    before = Migrations.here().note_image(step.job, step.id, step.image)
    if not step.revive:
        return _timed(step, limit, tell)
    end = time.monotonic() + limit
    words = ("restore", "--image", step.image, "--suspended", step.job, "--when-told")
    with commands.ready(*words, imports=_RESTORES) as restored:
        done = _awaited(step, before[::-1], end, tell)
        tell(ProgressEvent(phase="processes"))
        began = time.monotonic()
        with ThreadPoolExecutor(1, "gcr-fill") as beside:
            filled = beside.submit(_filled, step.fill, end) if step.fill else None
            phases_s = restored(max(1.0, end - began)).get("processes_s", {})
            log.info("job %s: its processes are there, phases in seconds: %s", step.job, phases_s)
    try:
        _refuse_over(step)
    except NoSuchMigration:  # it was abandoned before there was a process that could have been ended
        _end_arrived(step.job, (step.image,))
        raise
    fill = filled.result() if filled else None
    ends = {**phases_s, "filled": fill.fill_s} if fill and not fill.refused else phases_s
    return replace(done, processes_s=time.monotonic() - began, phases_s=ends, filled=fill)


def _filled(step: Fill, end: float) -> Filled:
    """Has the daemon fill the devices. Raises nothing: the restore reads the image where that fails."""
    began = time.monotonic()
    limit = max(1.0, end - began)
    try:
        with Client.connect(autostart=False) as client:
            return client.ask(MigrateRequest(step=step.to_json(), timeout=limit), Filled, timeout=limit + GRACE_S)
    except GcrError as error:
        return Filled(bytes=0, fill_s=time.monotonic() - began, refused=error.message)


def _awaited(step: Pull, before: Sequence[str], end: float, tell: Tell) -> Pulled:
    """Pulls an image that is being made at the source just now. Raises NoSuchMigration once it is not wanted.

    before: images of the rounds, the last one first
    """
    try:
        while True:
            try:
                return _timed(step, max(1.0, end - time.monotonic()), tell, before)
            except NoSuchImage:
                if time.monotonic() > end:
                    raise
                _refuse_over(step)
    except NoSuchMigration:
        _clean()  # of packs that were sent ahead of the image
        raise


def _timed(step: Pull, limit: float, tell: Tell, before: Sequence[str] | None = None) -> Pulled:
    began = time.monotonic()
    moved = _moved(step, limit, tell, before)
    return Pulled(bytes_moved=moved, pull_s=time.monotonic() - began)


def _refuse_over(step: Pull) -> None:
    """Raises NoSuchMigration once the migration was abandoned here."""
    found = Migrations.here().of(step.job)
    if found is None or found.id != step.id:
        raise NoSuchMigration(f"the migration {step.id} of {step.job} is over here")


def _moved(step: Pull, limit: float, tell: Tell, before: Sequence[str] | None) -> int:
    """Returns the bytes that were pulled.

    before: images of the rounds, if the source is making this one; NoSuchMigration is raised then, too
    """
    from gcr.image.crypto.cipher import PLAIN
    from gcr.image.exchange.address import PeerAddress, Trust
    from gcr.image.exchange.pulling import Peers, pull_from_peers
    from gcr.image.remote.transfer import Moving, Transfer

    def told(now: Moving) -> None:
        tell(ProgressEvent(**asdict(now)))

    trust = Trust(pinned=step.exchange.certificate)
    awaits = before is not None
    wait_s = _AWAIT_S if awaits else 0.0
    peers = Peers([PeerAddress.parsed(step.exchange.address)], step.exchange.token, trust, wait_s=wait_s)
    check = partial(_refuse_over, step) if awaits else None
    transfer = Transfer("pull", limit, told)
    moved = pull_from_peers(store_path(), step.image, peers, None, transfer, PLAIN, check, before or ())
    return moved.bytes_moved


# ---- the job runs here -----------------------------------------------------------------------------------------------


def run(step: Run, limit: float) -> RanOn:
    """Has the job run here, from wherever it stands. Raises Lost where nothing of it is left, and as `gcr restore`."""
    row = _at_rest(step.job)
    if row and row.state == _RUNNING:
        return RanOn(state=row.state)
    if row is None and _has_ended(step.job):
        return RanOn(state="exited", ended=True)
    moves = [word for old, new in step.devices.items() for word in ("--device", f"{old}={new}")]
    if row and row.state in _SUSPENDED:
        commands.asked("restore", step.job, *moves, limit=limit)
        return RanOn(state=_RUNNING)
    image = _last_whole(step.images)
    if image is None:
        raise Lost(f"job {step.job} is not here, and none of its images has its processes", hint="gcr ps --all")
    commands.asked("restore", "--image", image, *moves, limit=limit)
    return RanOn(state=_RUNNING)


def _at_rest(job: str) -> JobInfo | None:
    """Returns the job's row once no command has its turn at it. Raises DeadlinePassed."""
    end = time.monotonic() + REST_S
    while True:
        with Client.connect() as client:
            answer = client.jobs()
        row = next((each for each in answer.jobs if each.job == job), None)
        if not answer.awaited and (row is None or (not row.changing and row.state in (_RUNNING, *_SUSPENDED))):
            return row
        if time.monotonic() > end:
            raise DeadlinePassed(f"job {job} has not come to rest within {REST_S:g} s", hint="gcr ps")
        time.sleep(_LOOK_S)


def _has_ended(job: str) -> bool:
    """Returns whether the program has ended by itself, and was not stopped into an image."""
    run = next((each for each in runs.all_runs() if each.job == job), None)
    if run is None or run.end is None:
        return False
    return run.end.was == _RUNNING or (run.end.how is How.EXITED and run.end.was not in _SAVED)


def _last_whole(images: Sequence[str]) -> str | None:
    """Returns the last of these images that has processes, if there is one."""
    from gcr.image.files.manifest import Cut

    store = Store(store_path())
    there = [name for name in images if name in store.images.names()]
    return next((name for name in reversed(there) if store.images.manifest(name).cut is Cut.PROCESS), None)


# ---- what is not wanted any more -------------------------------------------------------------------------------------


def abandoned(step: Abandon) -> Found:
    """Ends what has arrived, unless the job is owned here. Raises RolledBack for processes that do not end."""
    here = Migrations.here()
    found = here.of(step.job)
    if found is None or found.id != step.id or found.stage is not Stage.ARRIVING:
        return Found()
    _end_arrived(found.job, found.images)
    _remove(found.images)
    here.end(step.job, step.id, (Stage.ARRIVING,))
    _clean()  # of packs that came half: no later pull wants them
    return Found()


def forgotten(step: Forget) -> Found:
    """Removes the images and the record of a migration that is over: the job runs. Raises as `_remove`."""
    here = Migrations.here()
    found = here.of(step.job)
    noted = found.images if found and found.id == step.id else ()
    _remove({*step.images, *noted})
    here.end(step.job, step.id)
    _clean()
    return Found()


def _clean() -> None:
    """Frees what no image needs. An exchange of the migration ends with its record, and is waited for.

    Where another process is at work for longer, the next clean-up does it.
    """
    if is_none(store_path()):
        return
    with suppress(StoreBusy):
        Store(store_path()).clean(CLEAN_S)


def _end_arrived(job: str, images: Collection[str]) -> None:
    """Ends the processes of the job that came from one of these images. Raises RolledBack where they do not end."""
    end = time.monotonic() + REST_S
    while True:
        with Client.connect() as client:
            row = next((each for each in client.jobs().jobs if each.job == job), None)
        if row is None or row.only_in is None or row.only_in.image not in images:
            return
        end_all(job, tree_of([pid for pid in (row.pid, *(each.pid for each in row.processes)) if pid]))
        if time.monotonic() > end:
            raise RolledBack(f"the processes of {job} that had arrived do not end", hint="gcr ps")
        time.sleep(_LOOK_S)


def _remove(images: Collection[str]) -> None:
    """Removes those of the images that are in the store. Raises StoreUnusable, StoreBusy, Damaged."""
    path = store_path()
    if is_none(path):
        return
    store = Store(path)
    if there := sorted({*images} & {*store.images.names()}):
        store.remove(there)
