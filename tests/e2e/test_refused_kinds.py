"""Memory of kinds that few machines have: refused by its name before anything is touched, or swapped."""

import pytest
from machine import Machine
from refusals import refused, untouched


@pytest.mark.parametrize(
    ("machine_has", "told", "says"),
    [
        ("host-numa", "host_numa", "HOST_NUMA"),
        ("multicast", "multicast", "multicast"),
        ("fabric", "fabric_export", "fabric"),
    ],
)
def test_memory_of_kinds_that_no_driver_gives_back(machine: Machine, machine_has: str, told: str, says: str) -> None:
    """They are refused before the first step: nothing was exported, no gate was closed."""
    machine.extra["GCR_SIM_QUIRKS"] = machine_has
    job = machine.told("llm")
    if told == "fabric_export":
        assert job.ask("for_the_fabric") == "ok"
    assert job.ask(told) in ("ok", "0")
    machine.inject("checkpoint.prepared fail")
    with untouched(machine, job):
        answer = machine.gcr("checkpoint", "llm")
        assert says in refused(answer, "unsupported_state")
        assert answer.body["error"]["hint"].startswith("docs/limitations.md#")
    assert (machine.folder / "faults").read_text() == "checkpoint.prepared fail\n"


def test_memory_that_could_be_exported_to_other_nodes_and_is_not_is_swapped(machine: Machine) -> None:
    machine.extra["GCR_SIM_QUIRKS"] = "fabric"
    job = machine.told("llm", "for_the_fabric")
    before = job.ask()
    gone = machine.gcr("checkpoint", "llm")
    assert (gone.code, gone.body["vram_after_bytes"], gone.body["processes"][0]["uncovered"]) == (0, 0, {})
    assert machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_memory_for_the_fabric_that_has_no_descriptor_is_refused(machine: Machine) -> None:
    """The driver would have to carry it, and whether it gives such memory back is not known."""
    machine.extra["GCR_SIM_QUIRKS"] = "fabric"
    job = machine.told("llm")
    faults = machine.simulated / "faults"
    faults.write_text("cuMemCreate:1:fail=801\n")  # the call that asks for a descriptor as well
    assert job.ask("for_the_fabric") == "ok"
    faults.unlink()
    with untouched(machine, job):
        assert "fabric" in refused(machine.gcr("checkpoint", "llm"), "unsupported_state")
