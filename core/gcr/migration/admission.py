"""Compares two nodes before a job moves from one to the other. Pure: facts in, a refusal out."""

from collections.abc import Mapping

from gcr import units
from gcr.api.migrations import JobFacts, NodeFacts, Place
from gcr.errors import NameTaken, NoRoom, WrongDevice
from gcr.imageerrors import FilesChanged
from gcr.migrationerrors import CannotMigrate

MARGIN = 1.2  # times the job's bytes, in both stores: what changes is written again in each round


def admit(job: str, facts: JobFacts, source: NodeFacts, target: NodeFacts, moves: Mapping[str, str]) -> dict[str, str]:
    """Returns the device at the target for each one that the job uses, by UUID.

    Raises CannotMigrate, FilesChanged, NameTaken, NoRoom, WrongDevice.
    """
    _refuse_lacking(source, "the source")
    _refuse_lacking(target, "the target")
    if job in target.jobs:
        raise NameTaken(f"the target has a job {job} already", hint=f"gcr ps {job} there")
    _refuse_different(facts, source, target)
    if target.missing:
        raise FilesChanged(
            f"the target has other files: {'; '.join(target.missing)}", hint="the same paths on both nodes"
        )
    _refuse_full(facts, source, "source")
    _refuse_full(facts, target, "target")
    return _places(facts, source, target, moves)


def _refuse_lacking(node: NodeFacts, which: str) -> None:
    if node.lacks:
        raise CannotMigrate(f"{which}: {'; '.join(node.lacks)}", hint="gcr doctor there")
    if node.encrypted:
        text = f"{which} has an encrypted store, or a key in its settings, and a migration has no key"
        raise CannotMigrate(text, hint="stop, push, pull and restore it with the key: docs/migrate.md#encrypted-stores")


def _refuse_different(facts: JobFacts, source: NodeFacts, target: NodeFacts) -> None:
    for what, here in source.kind.items():
        there = target.kind.get(what, "unknown")
        if here != there:
            text = f"the {what} is {here} at the source and {there} at the target"
            raise CannotMigrate(text, hint="docs/migrate.md#what-it-needs")
    for name, here in source.drivers.items():
        there = target.drivers.get(name, "missing")
        if here != there:
            text = f"{facts.world.backend}, {name}: {here} at the source and {there} at the target"
            raise CannotMigrate(text, hint="the same driver on both nodes")


def _refuse_full(facts: JobFacts, node: NodeFacts, which: str) -> None:
    needed = int(MARGIN * (sum(facts.devices.values()) + facts.host_bytes))
    if node.store_free_bytes < needed:
        missing = needed - node.store_free_bytes
        text = f"the store of the {which} has {units.size(node.store_free_bytes)} free: {units.size(missing)} short"
        raise NoRoom(text, missing=missing, hint="gcr prune there, or another disk as the setting store")


def _places(facts: JobFacts, source: NodeFacts, target: NodeFacts, moves: Mapping[str, str]) -> dict[str, str]:
    models = {each.uuid: each.name for each in source.devices}
    asked = {_named(old, source): _named(new, target) for old, new in moves.items()}
    if unused := [old for old in asked if old not in facts.devices]:
        raise WrongDevice(f"the job uses nothing of {unused[0]}", hint="gcr ps")
    free = {each.uuid: each for each in target.devices if each.uuid not in asked.values()}
    places = dict[str, str]()
    for uuid, size in facts.devices.items():
        model = models.get(uuid, "")
        place = _of(target, asked[uuid]) if uuid in asked else _first(free, uuid, model)
        if place is None or place.name != model:
            text = f"the job uses device {uuid} ({model}), and nothing at the target can take its place"
            raise WrongDevice(text, hint="gcr devices there")
        if place.free_bytes < size:
            missing = size - place.free_bytes
            text = f"device {place.uuid} of the target: {units.size(missing)} short of {units.size(size)}"
            raise NoRoom(text, missing=missing, hint="gcr ps there, or --device OLD=NEW")
        free.pop(place.uuid, None)
        places[uuid] = place.uuid
    return places


def _first(free: Mapping[str, Place], uuid: str, model: str) -> Place | None:
    """Returns the device of this UUID, where it is here, else the first one of the model."""
    same = (each for each in free.values() if each.name == model)
    return free.get(uuid) or next(same, None)


def _of(node: NodeFacts, uuid: str) -> Place | None:
    return next((each for each in node.devices if each.uuid == uuid), None)


def _named(name: str, node: NodeFacts) -> str:
    """Returns the UUID of a device by its UUID or its number. Raises WrongDevice."""
    number = name.rpartition(":")[2]
    if number.isdigit() and int(number) < len(node.devices):
        return node.devices[int(number)].uuid
    if _of(node, name):
        return name
    raise WrongDevice(f"there is no device {name}", hint="gcr devices")
