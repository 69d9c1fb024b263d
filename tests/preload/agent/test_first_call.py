"""The first call of a process: it waits for the welcome, and where the job is off its devices until it may begin."""

import time
from collections.abc import Iterator

import pytest
from agent import Agent
from packets import FRESH, RUNNING, WAIT
from patience import wait_for

MiB = 1 << 20


@pytest.fixture
def waiting(machine) -> Iterator[tuple]:
    """A puppet that has called cuInit, in front of a gate that a daemon wants closed."""
    machine.listen().flags = WAIT
    puppet = machine.puppet()
    puppet.must("thread t init")
    yield puppet, machine.daemon.accept()


def stands(puppet) -> bool:
    time.sleep(0.3)
    return bool(puppet.tell("done t") == "running")


def goes_on(puppet, agent: Agent) -> None:
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    assert not agent.status().flags & FRESH
    puppet.must("primary p 0", "alloc a 0x200000", "free a")


def begin(agent: Agent) -> None:
    agent.ask("begin")


def test_it_waits_until_it_may_begin(waiting):
    puppet, agent = waiting
    assert agent.hello.flags & FRESH
    assert stands(puppet)
    status = agent.status()
    assert (status.phase, status.contexts, status.in_flight) == (RUNNING, 0, 0)
    begin(agent)
    goes_on(puppet, agent)


def test_another_thread_waits_as_well(waiting):
    puppet, agent = waiting
    puppet.must("thread u init")
    time.sleep(0.3)
    assert puppet.tell("done u") == "running"
    begin(agent)
    assert wait_for(lambda: puppet.tell("done u") == "ok")
    goes_on(puppet, agent)


@pytest.mark.parametrize("flags", [0, WAIT])
def test_the_next_daemon_decides_anew(machine, waiting, flags):
    puppet, agent = waiting
    machine.daemon.flags = flags
    agent.close()
    again = machine.daemon.accept()
    assert again.hello.flags & FRESH
    if flags:
        assert stands(puppet)
        begin(again)
    goes_on(puppet, again)


def test_one_that_has_begun_is_held_back_by_no_welcome(machine):
    """It has memory on the device: to stop it is what a checkpoint does."""
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000")
    assert not agent.status().flags & FRESH
    machine.daemon.flags = WAIT
    agent.close()
    again = machine.daemon.accept()
    assert not again.hello.flags & FRESH
    puppet.must("free a", "alloc b 0x200000")
    assert again.cycle() == (1, 2 * MiB)


def test_a_child_and_its_parent_wait_each_for_itself(machine):
    machine.listen().flags = WAIT
    puppet = machine.puppet()
    puppet.must("thread u fork init")
    child = machine.daemon.accept()
    puppet.must("thread t init")
    agent = machine.daemon.accept()
    assert child.hello.flags & FRESH
    assert child.hello.pid != agent.hello.pid
    time.sleep(0.3)
    assert puppet.tell("done u") == "running"
    child.send("begin", bytes(8))  # it may end before it answers
    assert wait_for(lambda: puppet.tell("done u").endswith("threads, ok"))
    assert stands(puppet)
    begin(agent)
    goes_on(puppet, agent)


def test_begin_is_for_the_transaction_to_open_what_it_closed(machine):
    """It may come late, when a checkpoint has begun with a process that had waited."""
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000")
    agent.export()
    agent.quiesce()
    begin(agent)
    puppet.must("thread t alloc b 4096")
    assert stands(puppet)
    agent.ask("resume")
    assert wait_for(lambda: puppet.tell("done t") == "ok")


@pytest.mark.parametrize("there", [False, True])
def test_without_an_answer_the_program_goes_on(machine, there):
    """A daemon that is not there is not waited for, one that says nothing only a moment, and once."""
    if there:
        machine.listen().silent = True
    puppet = machine.puppet()
    began = time.monotonic()
    puppet.must("init")
    assert time.monotonic() - began < (8 if there else 4)  # a daemon has 5 s for its answer
    began = time.monotonic()
    puppet.must("primary p 0", "alloc a 0x200000")
    assert time.monotonic() - began < 4
