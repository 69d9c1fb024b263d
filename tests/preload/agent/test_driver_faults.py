"""The driver fails in the middle: the answer says so, nothing is left half done, and a retry succeeds."""

import pytest
from packets import DRIVER, HANDED_OVER, PREPARED, QUIESCED, RUNNING, Refused

MiB = 1 << 20
FAULT = 999


def fail(machine, *rules):
    (machine.folder / "sim/faults").write_text("\n".join(f"{rule}:fail={FAULT}" for rule in rules) + "\n")


def repair(machine):
    (machine.folder / "sim/faults").write_text("# none\n")


@pytest.fixture
def three(machine):
    """Three handles in three reservations of the program: nothing can be taken in one call."""
    puppet, agent = machine.target()
    for name in "uvw":
        puppet.must(f"create h{name} 0x200000", f"reserve {name} 0x400000", f"map {name} 0 0x200000 h{name}")
        puppet.must(f"access {name} 0 0x200000 0 3")
    puppet.must("alloc a 0x200000", "fill a 4", "sync")
    return machine, puppet, agent


def works(puppet, agent):
    agent.cycle()
    puppet.must("check a 4", "fill a 5", "sync", "check a 5")
    for name in "uvw":
        assert puppet.tell(f"getaccess {name} 0 0") == "ok 3"


def test_export(three):
    machine, puppet, agent = three
    fail(machine, "cuMemExportToShareableHandle:1")
    with pytest.raises(Refused) as caught:
        agent.export()
    assert (caught.value.code, caught.value.vendor_error) == (DRIVER, FAULT)
    assert agent.status().phase == RUNNING
    repair(machine)
    works(puppet, agent)


def test_a_later_export_sends_what_there_is(three):
    machine, puppet, agent = three
    fail(machine, "cuMemExportToShareableHandle:3")
    batch, last, more = agent.export_batch()
    assert (len(batch), last, more) == (2, batch[1].id, True)
    assert len(agent.export(after=last)) == 2
    agent.ask("resume")
    works(puppet, agent)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_unmap(three, at):
    machine, puppet, agent = three
    agent.export()
    agent.quiesce()
    fail(machine, f"cuMemUnmap:{at}+")
    with pytest.raises(Refused) as caught:
        agent.count("hand_over")
    assert caught.value.code == DRIVER
    assert "as before" in str(caught.value)
    assert agent.status().phase == QUIESCED
    repair(machine)
    agent.ask("resume")
    works(puppet, agent)


@pytest.mark.parametrize("call", ["cuMemImportFromShareableHandle:3+", "cuMemMap:2+"])
def test_import(three, call):
    machine, puppet, agent = three
    agent.take()
    before = puppet.tell("descriptors")
    fail(machine, call)
    with pytest.raises(Refused) as caught:
        agent.give_back(sorted(agent.custody.held))
    assert caught.value.code == DRIVER
    assert agent.status().phase == HANDED_OVER
    assert puppet.tell("descriptors") == before
    repair(machine)
    agent.bring_back()
    works(puppet, agent)


def test_access(three):
    machine, puppet, agent = three
    agent.take()
    agent.give_back(sorted(agent.custody.held))
    fail(machine, "cuMemSetAccess:2+")
    with pytest.raises(Refused) as caught:
        agent.count("map")
    assert caught.value.code == DRIVER
    assert agent.status().phase == HANDED_OVER
    repair(machine)
    agent.count("map")
    agent.ask("resume")
    works(puppet, agent)


def test_release_is_told_by_the_count(three):
    machine, _, agent = three
    agent.export()
    agent.quiesce()
    fail(machine, "cuMemRelease:2")
    assert agent.count("hand_over") == (3, 6 * MiB)  # of four
    assert agent.status().phase == HANDED_OVER


def test_synchronize(three):
    machine, puppet, agent = three
    agent.export()
    fail(machine, "cuCtxSynchronize:1")
    with pytest.raises(Refused) as caught:
        agent.quiesce()
    assert (caught.value.code, caught.value.vendor_error) == (DRIVER, FAULT)
    assert agent.status().phase == PREPARED
    repair(machine)
    agent.ask("resume")
    works(puppet, agent)


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAddressReserve"])
@pytest.mark.parametrize("size", [4096, 3 * MiB])
def test_an_allocation_that_cannot_be_mapped_is_the_driver_s(machine, call, size):
    """Never out of memory because of us: the driver's own allocator serves, and the bytes count as not covered."""
    puppet, agent = machine.target()
    fail(machine, f"{call}:1+")
    puppet.must(f"alloc a {size}", "fill a 1", "sync", "check a 1")
    assert agent.status().uncovered == {15: (False, size, 1)}
    repair(machine)
    puppet.must(f"alloc b {size}", "free a")
    assert agent.status().uncovered == {}
    agent.cycle()


def test_memory_the_driver_will_not_make_exportable(machine):
    puppet, agent = machine.target()
    fail(machine, "cuMemCreate:1")
    puppet.must("create h 0x200000")
    assert agent.status().uncovered == {15: (False, 2 * MiB, 1)}
    assert agent.export() == []
    puppet.must("release h")
    assert agent.status().uncovered == {}
