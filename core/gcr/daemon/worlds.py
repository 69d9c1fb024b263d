"""The drivers that the daemon's children see.

Nothing that a target or a client says decides what these load. A simulated world consists of settings of the simulated
machine (`GCR_SIM_*`) alone; the folder of its libraries is found here, in this installation or by the backend's plugin.
A simulated world is for jobs of the daemon's own user, and its state lies in a folder of that user.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import MsgspecError
from msgspec.json import decode

from gcr.engine.node import World
from gcr.errors import BackendMissing, NotOurs, UnsafeRuntime, UsageError
from gcr.job.decisions import DecisionRecord
from gcr.names import BACKEND_NAME
from gcr.native import own_simulator
from gcr.rendezvous.launch import daemon_environment
from gcr.runtime import check_unshared_directory

SIMULATE, STATE = "GCR_SIMULATE", "GCR_SIM_STATE"
_SETTING = re.compile(r"GCR_SIM_[A-Z_]+\Z")
_LIBRARIES = "LD_LIBRARY_PATH"
_LEADING = (_LIBRARIES, "ROCM_PATH")  # a hint which of our own simulators it is; never believed
PLUGIN_S = 20.0  # seconds for a plugin to say where its simulated driver is
_MACHINE = "machine"  # the file of a simulated machine's state that is there from its beginning


def simulated_world(vendor: str, told: Mapping[str, str], owner: int) -> World:
    """The world of a job or process of user `owner` that sees a simulated driver, as its environment tells.

    Raises NotOurs for another user's, UsageError for what cannot be an environment.
    """
    if owner != os.getuid():
        text = f"simulated devices are for jobs of the daemon's own user {os.getuid()}, not of user {owner}"
        raise NotOurs(text, hint="run gcr as that user")
    kept = {name: str(value) for name, value in told.items() if _SETTING.match(name)}
    if any("\0" in value for value in kept.values()):
        raise UsageError("an environment variable holds a NUL")
    ours = {name: found for name in _LEADING if (found := _leads_to_ours(told.get(name)))}
    environment = {**kept, **ours, SIMULATE: backend_name(vendor)}
    return World(vendor, simulated=True, environment=tuple(sorted(environment.items())))


def recorded_world(record: DecisionRecord) -> World:
    """The world of a job as the journal has it; what an older daemon wrote there is not believed either."""
    if record.simulated:
        return simulated_world(record.backend, record.environment, os.getuid())
    return World(backend_name(record.backend))


def backend_name(name: object) -> str:
    """Raises UsageError for what cannot be the name of a backend."""
    if not isinstance(name, str) or not BACKEND_NAME.match(name):
        raise UsageError(f"{name!r} is not the name of a backend", hint="gcr backends")
    return name


def child_environment(world: World) -> Mapping[str, str]:
    """Returns the environment of a worker or control helper: the daemon's own, and variables of a simulated driver.

    Raises UnsafeRuntime for a simulated machine whose folder others can write, BackendMissing.
    """
    env = daemon_environment()
    env.pop("LD_PRELOAD", None)
    if not world.simulated:
        return env
    for name in [n for n in env if n.startswith("GCR_SIM")]:
        env.pop(name)
    told = dict(world.environment)
    env |= {name: value for name, value in told.items() if _SETTING.match(name)}
    led = {name: found for name in _LEADING if (found := _leads_to_ours(told.get(name)))}
    _check_state(env.get(STATE), marked=_LIBRARIES in led)
    if _LIBRARIES not in led:
        led = dict(_by_plugin(world.backend, tuple(sorted(env.items()))))
    rest = env.get(_LIBRARIES)
    env |= led
    env[_LIBRARIES] = f"{led[_LIBRARIES]}:{rest}" if rest else led[_LIBRARIES]
    env[SIMULATE] = world.backend
    return env


def _leads_to_ours(path: str | None) -> str | None:
    """The folder of a simulated driver of this installation, where a search path begins with one."""
    first = (path or "").partition(os.pathsep)[0]
    return str(found) if first and (found := own_simulator(Path(first))) else None


def _check_state(state: str | None, marked: bool) -> None:
    """Raises UnsafeRuntime unless the simulated machine is in a folder that only this user can write.

    marked: the driver is ours, so the folder is empty, or holds a machine of it.
    """
    folder = Path(state or f"/dev/shm/gcr-sim-{os.getuid()}")
    if not folder.is_absolute():
        raise UnsafeRuntime(f"{STATE} is {state!r}, which is no whole path")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnsafeRuntime(f"{STATE}: cannot make {folder}: {error.strerror}") from error
    check_unshared_directory(folder)
    names = {entry.name for entry in folder.iterdir()} if marked else set()
    if names - {"faults"} and _MACHINE not in names:
        raise UnsafeRuntime(f"{STATE}: {folder} is no simulated machine's", hint="name an empty folder")


@cache
def _by_plugin(vendor: str, environment: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Returns the variables of a plugin's simulated driver. A process of its own asks: the daemon loads no plugin."""
    command = [sys.executable, "-m", "gcr.simulated", vendor]
    try:
        done = subprocess.run(
            command, env=dict(environment), cwd="/", capture_output=True, text=True, timeout=PLUGIN_S, check=False
        )
        led = decode(done.stdout, type=dict[str, str])
    except (subprocess.TimeoutExpired, MsgspecError, OSError) as error:
        raise BackendMissing(f"there is no simulated {vendor}: {error}", hint="gcr backends") from error
    if _LIBRARIES not in led:
        raise BackendMissing(f"the plugin of {vendor} names no folder of its simulated driver", hint="gcr backends")
    return tuple(sorted(led.items()))
