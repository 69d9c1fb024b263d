"""A program finds no room on a device: gcr gives back its temporary memory there before the program is told.

It asks in any state of its own, but only for devices that the daemon's page names: asking costs time.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from oracle import Page
from packets import QUIESCE
from patience import wait_for

MiB = 1 << 20
FULL = 128 * MiB
OUT_OF_MEMORY = "2"
ANSWER = 10.0  # seconds that a daemon's answer is waited for
WORKERS_END = 3.0  # and the workers of one that is dead


@pytest.fixture
def full(machine):
    """A program on a device where a stranger has all the room there is; what makes some; and the device's name."""
    machine.memory = FULL
    puppet, agent = machine.target()
    puppet.must("alloc big 0x3000000")
    spare = machine.ready(socket=False)
    while spare.tell("allocmany x 1 0x400000") == "ok":
        continue
    return puppet, agent, lambda: spare.tell("free x0"), agent.status().devices[0][0]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def works(puppet) -> None:
    puppet.must("fill late 1", "sync", "check late 1")


def test_it_asks_and_tries_again(machine, full):
    puppet, agent, make_room, device = full
    agent.questions.on_let_go = make_room
    assert puppet.tell("alloc late 0x400000") == OUT_OF_MEMORY
    assert agent.questions.let_go == []
    machine.daemon.page.say(0, device, 1)
    assert puppet.tell("alloc late 0x400000") == "ok"
    assert agent.questions.let_go == [device]
    works(puppet)
    assert puppet.tell("alloc no 0x4000000") == OUT_OF_MEMORY
    assert agent.questions.let_go == [device, device]
    machine.daemon.page.say(0, device, 0)
    assert puppet.tell("alloc no 0x4000000") == OUT_OF_MEMORY
    assert agent.questions.let_go == [device, device]


@pytest.mark.parametrize("said", ["nothing", "another device", "no page"])
def test_without_occupied_devices_no_process_is_asked(machine, full, said):
    """However long the daemon might take, and also while exports exist: every free waited until all had let go."""
    puppet, agent, make_room, device = full
    agent.questions.answered = False
    agent.export()
    if said == "another device":
        machine.daemon.page.say(0, bytes(reversed(device)), 1)
    if said == "no page":
        machine.daemon.with_page = False
        agent.close()
        agent = machine.daemon.accept()
        machine.daemon.page.say(0, device, 1)
    with within(ANSWER - 1):
        assert puppet.tell("alloc late 0x400000") == OUT_OF_MEMORY
    assert agent.questions.let_go == []
    make_room()
    assert puppet.tell("alloc late 0x400000") == "ok"
    works(puppet)


@pytest.mark.parametrize("prepared", [False, True])
def test_the_last_row_counts_and_every_phase(machine, full, prepared):
    puppet, agent, make_room, device = full
    agent.questions.on_let_go = make_room
    machine.daemon.page.say(127, device, 1)
    if prepared:
        agent.export()
    assert puppet.tell("alloc late 0x400000") == "ok"
    assert agent.questions.let_go == [device]
    if prepared:
        agent.ask("resume")
    works(puppet)


def test_it_may_ask_while_the_gate_closes(machine, full):
    """Its thread is in flight: the agent reads the daemon's answer while it waits for that very thread."""
    puppet, agent, make_room, device = full
    agent.questions.answered = False
    agent.export()
    machine.daemon.page.say(0, device, 1)
    puppet.must("thread t alloc late 0x400000")
    assert wait_for(lambda: agent.questions.let_go == [device])
    request = agent.begin("quiesce", QUIESCE.pack(agent.transaction, 8000, 20))
    time.sleep(0.1)
    make_room()
    agent.questions.answered = True
    agent.questions.answer_late()
    agent.reply("quiesce", request)
    agent.ask("resume")
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    works(puppet)


def test_a_program_that_was_stopped_when_it_was_said_knows(machine, full):
    puppet, agent, make_room, device = full
    agent.questions.on_let_go = make_room
    os.kill(puppet.process.pid, signal.SIGSTOP)
    machine.daemon.page.say(0, device, 1)
    os.kill(puppet.process.pid, signal.SIGCONT)
    assert puppet.tell("alloc late 0x400000") == "ok"
    assert agent.questions.let_go == [device]


def test_a_daemon_that_hangs_is_waited_for_once(machine, full):
    puppet, agent, make_room, device = full
    agent.questions.answered = False
    machine.daemon.page.say(0, device, 1)
    with within(2 * ANSWER - 1):
        assert puppet.tell("alloc late 0x400000") == OUT_OF_MEMORY
    with within(ANSWER - 1):
        assert puppet.script(["alloc late 0x400000"] * 3) == [OUT_OF_MEMORY] * 3
    assert agent.questions.let_go == [device]
    agent.questions.answered = True
    agent.questions.answer_late()
    agent.questions.on_let_go = make_room
    assert wait_for(lambda: puppet.tell("alloc late 0x400000") == "ok")
    assert agent.questions.let_go[:2] == [device, device]
    works(puppet)


@pytest.mark.parametrize("when", ["asked", "not asked", "the next is there"])
def test_a_daemon_that_dies_is_not_waited_for_but_its_workers_end(machine, full, when):
    """Their memory is free in a moment, and no daemon is there to say when: the next one says nothing of it."""
    puppet, agent, make_room, device = full
    agent.questions.answered = False
    machine.daemon.page.say(0, device, 1)
    if when == "asked":
        puppet.must("thread t alloc late 0x400000")
        assert wait_for(lambda: agent.questions.let_go == [device])
    if when == "the next is there":
        machine.daemon.page.close()
        machine.daemon.page = Page()
    with within(ANSWER - 1):
        agent.close()
        if when == "the next is there":
            agent = machine.daemon.accept()
        if when != "asked":
            puppet.must("thread t alloc late 0x400000")
        time.sleep(0.3)
        assert puppet.tell("done t") == "running"
        make_room()
        assert wait_for(lambda: puppet.tell("done t") == "ok")
    works(puppet)


def test_what_a_dead_daemon_said_is_over(machine, full):
    puppet, agent, _, device = full
    agent.questions.answered = False
    machine.daemon.page.say(0, device, 1)
    agent.close()
    with within(5 * WORKERS_END - 1):
        assert puppet.script(["alloc late 0x400000"] * 5) == [OUT_OF_MEMORY] * 5
    time.sleep(WORKERS_END + 0.2)
    with within(WORKERS_END - 0.2):
        assert puppet.script(["alloc late 0x400000"] * 5) == [OUT_OF_MEMORY] * 5
