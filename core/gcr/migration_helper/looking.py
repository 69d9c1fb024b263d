"""Describes this node: its devices and drivers, its store, CRIU, and the files that a job needs here."""

import os
import platform
import shutil
from importlib import import_module
from pathlib import Path

from gcr import config
from gcr.api.migrations import Look, NodeFacts, Place
from gcr.criu import known, program
from gcr.criu.files import FileSeen, changed, settled
from gcr.errors import GcrError, UsageError
from gcr.image.crypto.cipher import PLAIN
from gcr.image.store.location import store_path
from gcr.image.store.mark import Mark
from gcr.job import runs
from gcr.migration_helper.packing import packed, unpacked
from gcr.plugins import load_backend
from gcr.rendezvous.client import Client
from gcr.runtime import socket_path
from gcr.version import __version__

_NEEDED = ("cryptography",)
_TOLD = 5  # files in one message


def looked(step: Look) -> NodeFacts:
    """Raises BackendMissing, DaemonUnavailable, Damaged for the mark of a store, OSError."""
    settings, store = config.load(), store_path()
    backend = load_backend(step.world.backend)
    with Client.connect(autostart=False) as client:
        jobs = tuple(each.job for each in client.jobs().jobs)
    return NodeFacts(
        kind={
            "gcr": __version__,
            "user": str(os.getuid()),
            "processor": platform.machine(),
            "daemon's socket": str(socket_path()),
        },
        store=str(store),
        store_free_bytes=_free_bytes(store),
        encrypted=bool(settings.key_file or settings.key_command or Mark(store, PLAIN).found()),
        jobs=jobs,
        devices=tuple(Place(each.uuid, each.name, each.total_bytes - each.used_bytes) for each in backend.devices()),
        drivers={each.name: each.evidence for each in backend.probe() if each.ok and "driver" in each.evidence},
        lacks=_lacks(),
        files=packed(_files(step)) if step.pids else "",
        missing=_missing(step.files),
    )


def _files(step: Look) -> list[FileSeen]:
    """Returns the files of the job's processes.

    Left out are those of a simulated machine, which stand for devices, and the job's log: the target has its own.
    """
    simulated = step.world.environment.get("GCR_SIM_STATE") if step.world.simulated else None
    logs = {run.log for run in runs.all_runs() if run.pid in step.pids}
    found = [each for each in settled(step.pids) if each.path not in logs]
    return [each for each in found if not (simulated and each.path.startswith(f"{simulated}/"))]


def _lacks() -> tuple[str, ...]:
    found = [f"the Python module {name} is missing: pip install 'gpu-cr[migrate]'" for name in _NEEDED if _absent(name)]
    try:
        known.look(program.find())  # the return of the processes need not look again
    except GcrError as error:
        found.append(f"{error.message}: {error.hint}" if error.hint else error.message)
    return tuple(found)


def _absent(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return True
    return False


def _missing(files: str) -> tuple[str, ...]:
    try:
        found = changed(unpacked(files))
    except ValueError as error:
        raise UsageError(f"no list of files: {error}") from error
    told = [str(each) for each in found[:_TOLD]]
    return (*told, *([f"and {len(found) - _TOLD} more"] if len(found) > _TOLD else []))


def _free_bytes(store: Path) -> int:
    there = store
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free
