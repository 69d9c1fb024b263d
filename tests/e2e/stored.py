"""Machines whose jobs are written to images in one store: the commands, and what the store has then."""

from pathlib import Path

from machine import Machine, until

from gcr.image.store.store import Store

MIB = 1 << 20


def store_of(machine: Machine) -> Path:
    return machine.folder / "store"


def away(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    """The job is checkpointed, and its image durable."""
    words = ("--image", name, "--wait", "durable", "--store", str(store_of(machine)))
    gone = machine.gcr("checkpoint", "llm", *machine.where.options, *words, *flags)
    assert gone.code == 0, gone.body
    return gone.body


def back(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    return machine.gcr("restore", "--image", name, "--store", str(store_of(machine)), *flags).body


def image_code(machine: Machine, name: str) -> tuple[int, str]:
    refused = machine.gcr("restore", "--image", name, "--store", str(store_of(machine)))
    return refused.code, refused.body["error"]["code"]


def durable(machine: Machine, name: str) -> None:
    until(lambda: name in Store(store_of(machine)).images.names() or None, 30, f"image {name} is durable")


def chunks(machine: Machine, name: str) -> list[bytes]:
    """The names of an image's chunks, which are right: they are hashes of what they contain."""
    assert machine.gcr("verify", name, "--deep", "--store", str(store_of(machine))).code == 0
    return names_of_chunks(store_of(machine), name)


def names_of_chunks(folder: Path, name: str) -> list[bytes]:
    store = Store(folder)
    found = store.images.references(store.images.manifest(name))
    return [*found.names(0, len(found))]


def leave_running(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    words = ("--image", name, "--leave-running", "--wait", "durable", "--store", str(store_of(machine)))
    gone = machine.gcr("checkpoint", "llm", *words, *flags)
    assert gone.code == 0, gone.body
    return gone.body
