"""The description of a job by its supervisor, checked before the daemon uses any of it."""

import os

from msgspec import Struct

from gcr.daemon.worlds import backend_name, simulated_world
from gcr.engine.node import World
from gcr.errors import UsageError
from gcr.job.decisions import KeptImage
from gcr.names import DEFAULT_BACKEND, JOB_NAME
from gcr.processes import owner_uid, pid_here
from gcr.protocol.operations.daemon import Register

_TOKEN_CHARACTERS = 64


class Registration(Struct, frozen=True):
    """`name`: None for one after its program. `runs`: the program does, as `pid`, where that is of the same user.

    leaves: the supervisor can close all that CRIU could not save
    revives: the supervisor is about to make the job's processes again
    parks: the supervisor stays without its program · parked: it does, and this image of our own user's has the job
    """

    owner: int
    name: str | None
    token: str
    argv: tuple[str, ...]
    runs: bool
    pid: int | None
    world: World
    parks: bool = False
    parked: KeptImage | None = None
    leaves: bool = False
    revives: bool = False


def registration(asked: Register, owner: int, supervisor: int) -> Registration:
    """Raises UsageError for what is no registration, NotOurs for a simulated world of another user.

    supervisor: the pid of the process that asks
    """
    name = checked_name(asked.name) if asked.name else None
    if not 0 < len(asked.token) <= _TOKEN_CHARACTERS:
        raise UsageError("a job is registered with a token")
    if not asked.argv:
        raise UsageError("a job is registered with the words of its command")
    pid, world = asked.pid, _world(asked, owner)
    parked = KeptImage(asked.parked.store, asked.parked.image) if asked.parked and owner == os.getuid() else None
    own = own_pid(pid, owner, supervisor)
    return Registration(
        owner,
        name,
        asked.token,
        asked.argv,
        runs=pid is not None,
        pid=own,
        world=world,
        parks=asked.parks,
        parked=parked,
        leaves=asked.leaves,
        revives=asked.revives is not None,
    )


def checked_name(name: str) -> str:
    """Raises UsageError for what cannot be the name of a job."""
    if not JOB_NAME.match(name):
        text = f"{name[:80]!r} is not the name of a job: a to z first, then up to 62 of a-z, 0-9 and ._-"
        raise UsageError(text)
    return name


def own_pid(told: int | None, owner: int, supervisor: int) -> int | None:
    """Returns the pid of a process as its supervisor tells it, in our namespace of pids.

    None for a process of another user: a job is not named by such a one.
    """
    pid = None if told is None else pid_here(told, supervisor)
    return pid if pid is not None and owner_uid(pid) == owner else None


def _world(asked: Register, owner: int) -> World:
    if asked.simulate:
        if asked.sim_environment is None:
            raise UsageError("a simulated job is registered with its environment")
        return simulated_world(backend_name(asked.simulate), asked.sim_environment, owner)
    return World(backend_name(asked.backend or DEFAULT_BACKEND))
