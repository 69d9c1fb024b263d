"""Ranks that wait for each other's interprocess events are swapped; no image is made in which they would end."""

import pytest
from machine import Machine
from p2p import NAME, Group, error_of, is_away
from stored import store_of

IN_THE_IMAGE = ["--stop"], ["--processes"]


def whole(machine: Machine, *how: str) -> dict[str, str]:
    """Returns the refusal of an image that has the processes."""
    error = error_of(machine.gcr("checkpoint", NAME, "--image", "night", *how, "--store", str(store_of(machine))))
    assert (error["exit"], error["code"]) == (3, "unsupported_state"), error
    assert error["hint"] == "docs/limitations.md#ipc_event"
    assert "has used interprocess events" in error["message"]
    return error


def test_a_stream_waits_for_another_rank_s_work_at_the_cut(machine: Machine) -> None:
    """The owner's work goes on after its gate is closed, and the borrower's stream with it."""
    group = Group.start(machine, ranks=2)
    for number in range(3):
        with machine.held_at("checkpoint.prepared"):
            running = machine.command("checkpoint", NAME)
            machine.wait_held()
            group.ask("make event")
            group.ask(f"take {number}")
        is_away(machine, running.result(60), 2)
        group.come_back()
        group.ask("?")
        group.works()
    group.swaps()


@pytest.mark.usefixtures("criu")
def test_they_are_in_no_image_with_their_processes(machine: Machine) -> None:
    """Neither while they run nor while they are suspended; not even once their events are destroyed."""
    group = Group.start(machine, ranks=2)
    group.lends("event")
    group.ask("drop 0 borrower")
    group.ask("drop 0 owner")
    machine.inject("checkpoint.prepared fail")
    for how in IN_THE_IMAGE:
        with group.untouched():
            assert whole(machine, *how)["state"] == "running"
    assert (machine.folder / "faults").read_text() == "checkpoint.prepared fail\n"
    (machine.folder / "faults").unlink()
    group.leave()
    for how in IN_THE_IMAGE:
        assert whole(machine, *how)["state"] == "suspended"
    group.come_back()
    group.works()
    group.leave("--image", "data", "--store", str(store_of(machine)))
    group.come_back()
    group.works()
