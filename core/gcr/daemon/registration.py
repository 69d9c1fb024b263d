"""The description of a job by its supervisor, checked before the daemon uses any of it."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gcr.daemon.worlds import backend_name, simulated_world
from gcr.engine.node import World
from gcr.errors import UsageError
from gcr.names import DEFAULT_BACKEND, JOB_NAME
from gcr.processes import owner_uid

_TOKEN_CHARACTERS = 64


class Registration(Struct, frozen=True):
    """`name`: None for one after its program. `runs`: the program does, as `pid`, where that is of the same user."""

    owner: int
    name: str | None
    token: str
    argv: tuple[str, ...]
    runs: bool
    pid: int | None
    world: World


def registration(body: Mapping[str, Any], owner: int) -> Registration:
    """Raises UsageError for what is no registration, NotOurs for a simulated world of another user."""
    name, token, argv = body.get("name") or None, body.get("token"), body.get("argv")
    if name is not None:
        checked_name(name)
    if not isinstance(token, str) or not 0 < len(token) <= _TOKEN_CHARACTERS:
        raise UsageError("a job is registered with a token")
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise UsageError("a job is registered with the words of its command")
    pid = body.get("pid")
    return Registration(owner, name, token, tuple(argv), pid is not None, own_pid(pid, owner), _world(body, owner))


def checked_name(name: object) -> str:
    """Raises UsageError for what cannot be the name of a job."""
    if not isinstance(name, str) or not JOB_NAME.match(name):
        text = f"{str(name)[:80]!r} is not the name of a job: a to z first, then up to 62 of a-z, 0-9 and ._-"
        raise UsageError(text)
    return name


def own_pid(pid: object, owner: int) -> int | None:
    """Returns the pid if it is of a process of this user, else None: a job is not named by another user's process."""
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and owner_uid(pid) == owner else None


def _world(body: Mapping[str, Any], owner: int) -> World:
    if vendor := body.get("simulate"):
        told = body.get("sim_environment")
        if not isinstance(told, Mapping):
            raise UsageError("a simulated job is registered with its environment")
        return simulated_world(backend_name(vendor), told, owner)
    return World(backend_name(body.get("backend") or DEFAULT_BACKEND))
