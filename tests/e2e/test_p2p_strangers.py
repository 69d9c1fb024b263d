"""Device memory that a job of ranks lends beyond it: refused before anything is touched, or in nobody's way."""

import pytest
from machine import Machine
from p2p import GUEST, NAME, Group
from refusals import refused


@pytest.fixture
def group(machine: Machine) -> Group:
    made = Group.start(machine, ranks=3)
    made.lends("asked", "cached")
    return made


def test_memory_that_another_job_has_is_refused_and_names_both(machine: Machine, group: Group) -> None:
    """Neither job can go while the other has the memory; both can when it was given back."""
    guest = machine.run("guest", *GUEST)
    group.guests, word = 1, group.victim.ask("word 1")
    group.ask("?")
    held = guest.ask(f"take {word}")
    assert held.startswith("0x"), held
    owner, borrower = group.pid(0), machine.target("guest")
    for name in (NAME, "guest"):
        with group.untouched():
            message = refused(machine.gcr("checkpoint", name), "unsupported_state")
        assert str(owner) in message and str(borrower) in message, message
        assert guest.ask("?").startswith("0x")
        assert machine.job("guest")["state"] == "running"  # type: ignore[index]
    assert guest.ask("drop") == "none"
    group.swaps()
    assert machine.gcr("checkpoint", "guest").code == 0
    assert machine.gcr("restore", "guest").code == 0
    assert guest.ask("?") == "none"


def test_a_program_without_gcr_cannot_import_and_is_in_nobodys_way(machine: Machine, group: Group) -> None:
    guest = machine.stranger(*GUEST)
    group.guests, word = 1, group.victim.ask("word 1")
    said = guest.ask(f"take {word}")
    assert said.startswith("code ") and said != "code 0", said
    group.swaps()
    assert guest.ask(f"take {word}") == said
    group.swaps()
