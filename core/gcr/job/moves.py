"""Moves of a whole job between devices: `gcr restore --device OLD=NEW`.

A driver wants every device named once, also those that the job has never touched. A displaced device that is not named
takes the place that became free, so a move is a swap with a device that was idle.
"""

from collections.abc import Collection, Mapping, Sequence

from gcr.backend import Device
from gcr.devices import same_uuid
from gcr.errors import WrongDevice

Moves = Mapping[str, str]
"""Device UUIDs, old to new: a permutation. Who is not named stays."""

HINT = "gcr devices lists them; gcr ps says which a job uses"


def moves_of(asked: Mapping[str, str], present: Sequence[Device], used: Collection[str]) -> dict[str, str]:
    """Returns the moves asked for, by UUID or by place in `present`, without devices that stay. Raises WrongDevice.

    used: UUIDs of the devices that the job has something on.
    """
    moves: dict[str, str] = {}
    for old, new in ((_find(old, present), _find(new, present)) for old, new in asked.items()):
        if old in moves:
            raise WrongDevice(f"{old} is named twice as the device to leave", hint=HINT)
        if new in moves.values():
            raise WrongDevice(f"{new} is named twice as the device to come back on", hint=HINT)
        if old not in used:
            raise WrongDevice(f"the job uses nothing of {old}", hint=HINT)
        moves[old] = new
    _refuse_displaced(moves, used)
    return {old: new for old, new in _closed(moves).items() if old != new}


def places_of(before: Sequence[tuple[str, str]], present: Sequence[Device]) -> dict[str, str]:
    """Returns the devices here that take the places of another machine's, by UUID; none on the machine itself.

    before: UUID and model of each device of the machine that the job left
    A driver wants each of them named. One that is here stays; the others are taken in order, model by model. Raises
    WrongDevice.
    """
    free = {device.uuid: device.name for device in present}
    places = {uuid: uuid for uuid, _ in before if uuid in free}
    if len(places) == len(before):
        return {}
    for uuid in places:
        del free[uuid]
    for uuid, model in before:
        if uuid not in places:
            places[uuid] = _first(free, uuid, model)
            del free[places[uuid]]
    return places


def _first(free: Mapping[str, str], uuid: str, model: str) -> str:
    found = next((each for each, name in free.items() if name == model), None)
    if found is None:
        text = f"the job left a machine with device {uuid} ({model}), and nothing here can take its place"
        raise WrongDevice(text, hint="gcr devices: it needs a machine with as many devices of the same models")
    return found


def moved(amounts: Mapping[str, int], moves: Moves) -> dict[str, int]:
    """Returns the values of devices under the devices that take their places."""
    return {moves.get(device, device): amount for device, amount in amounts.items()}


def _find(name: str, present: Sequence[Device]) -> str:
    for index, device in enumerate(present):
        if name == str(index) or same_uuid(name, device.uuid):
            return device.uuid
    raise WrongDevice(f"there is no device {name!r}", hint=HINT)


def _refuse_displaced(moves: Moves, used: Collection[str]) -> None:
    """Raises WrongDevice if two of the job's devices would meet on one."""
    for old, new in moves.items():
        if new in used and new not in moves:
            text = f"the job uses {new} as well, and two of its devices cannot come back on one"
            raise WrongDevice(text, hint=f"say where {new} goes, too: --device {new}={old}")


def _closed(moves: Moves) -> dict[str, str]:
    """Returns the moves with each chain made a ring: its last device takes the place of its first."""
    ring = dict(moves)
    for first in moves.keys() - moves.values():
        last = first
        while last in moves:
            last = moves[last]
        ring[last] = first
    return ring
