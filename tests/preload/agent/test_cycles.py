"""Cycles under load: threads allocate, fill, check and free all the time; every byte is checked by the program."""

import os
import random
import time

MiB = 1 << 20
CYCLES = int(os.environ.get("GCR_TEST_CYCLES", "200"))


def test_quick_cycles_under_load(target):
    puppet, agent = target
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    puppet.must("alloc kept 0x400000", "fill kept 1", "sync", "load 3")
    busy = 0
    for _ in range(CYCLES):
        time.sleep(chance.random() * 0.01)
        before = int(puppet.tell("rounds"))
        agent.cycle()
        busy += agent.status().in_flight
        assert int(puppet.tell("rounds")) >= before
    rounds = int(puppet.tell("rounds"))
    assert rounds > CYCLES  # they did work in between
    assert puppet.tell("endload", 60) == "right", f"seed {seed}"
    puppet.must("check kept 1")
    assert agent.status().generation == CYCLES
    assert int(puppet.tell("descriptors")) < 40


def test_prepared_and_abandoned_under_load(target):
    puppet, agent = target
    puppet.must("load 3")
    for _ in range(CYCLES // 2):
        agent.export(limit=5)
        time.sleep(0.005)
        agent.undo_prepare()
    assert puppet.tell("endload", 60) == "right"
    assert len(agent.questions.released) > 0


def test_two_devices_and_peers(machine):
    puppet, agent = machine.target()
    puppet.must("primary q 1", "peer p", "use p", "alloc a 0x300000", "use q", "alloc b 0x300000")
    puppet.must(machine.kernels(), "fill b 2", "sync", "use p", machine.kernels(), "fill a 1", "sync")
    agent.take()
    agent.bring_back()
    puppet.must("check a 1", "use q", "check b 2")
    by_access = sorted(row[4] for row in mappings_of(agent))
    assert by_access == [0b10, 0b11]


def mappings_of(agent):
    agent.export()
    found = agent.mappings()
    agent.undo_prepare()
    return found


def test_contiguous_ranges_come_and_go_at_once(target, machine):
    """One unmap and one access call for neighbours with equal access: a second call of either would fail here."""
    puppet, agent = target
    puppet.must("reserve v 0x2000000")
    for i in range(16):
        puppet.must(f"create h{i} 0x200000", f"map v {i * 2 * MiB} 0x200000 h{i}")
    puppet.must("access v 0 0x2000000 0 3", "fill v 1", "sync")
    (machine.folder / "sim/faults").write_text("cuMemUnmap:2:fail=999\ncuMemSetAccess:2:fail=999\n")
    assert agent.cycle()[0] == 16
    puppet.must("check v 1")
