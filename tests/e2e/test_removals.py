"""`gcr rm` and `gcr prune` tell the daemon what they removed, or why not: an event each."""

import os

from machine import Machine

from gcr.api.jobevents import ImagesRemoved, RemovalEvent, RemovalFailed
from gcr.rendezvous.following import Reader


def removals(machine: Machine) -> list[RemovalEvent]:
    with machine.connected() as client:
        return [each for each in Reader().rest(client) if isinstance(each, RemovalEvent)]


def test_each_removal_is_an_event_and_so_is_one_that_is_refused(machine: Machine) -> None:
    machine.start()
    store = str(machine.folder / "store")
    for name in ("warm", "warm2", "warm3"):
        made = machine.ask("checkpoint", "llm", leave_running=True, image=name, store=store, wait="durable")
        assert made.code == 0, made.body
    assert machine.gcr("rm", "cold", "--store", store).code == 3
    assert machine.gcr("rm", "warm", "--store", store).code == 0
    assert machine.gcr("prune", "--keep-last", "1", "--dry-run", "--store", store).code == 0
    freed = machine.gcr("prune", "--keep-last", "1", "--store", store).body["bytes_freed"]
    refused, removed, pruned = removals(machine)
    assert (
        isinstance(refused, RemovalFailed) and isinstance(removed, ImagesRemoved) and isinstance(pruned, ImagesRemoved)
    )
    assert (refused.command, refused.images, refused.code, refused.exit) == ("rm", ("cold",), "no_such_image", 3)
    assert (removed.command, removed.images, removed.count, removed.store) == ("rm", ("warm",), 1, store)
    assert (pruned.command, pruned.images, pruned.bytes_freed) == ("prune", ("warm2",), freed)
    assert pruned.by.startswith(f"uid {os.getuid()}, pid ") and pruned.took_s > 0
