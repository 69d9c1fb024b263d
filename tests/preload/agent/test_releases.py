"""A program frees what others hold: it waits for them once, and no more until they answer in time again."""

import time

import pytest
from patience import wait_for

COUNT = 600  # more than a socket takes
PROMPT = 2.0  # seconds that a free waits, once


@pytest.fixture
def held(machine):
    """A puppet with many handles that a daemon holds."""
    machine.memory = 2 * COUNT * (2 << 20)
    puppet, agent = machine.target()
    puppet.must(f"allocmany a {COUNT} 0x200000")
    handles = agent.export()
    assert len(handles) == COUNT
    return puppet, agent, [handle.id for handle in handles]


def took(puppet, *lines: str) -> float:
    began = time.monotonic()
    puppet.must(*lines)
    return time.monotonic() - began


@pytest.mark.parametrize("stopped", [False, True])
def test_one_wait_and_then_none(held, stopped):
    """Holds if the daemon reads and does not answer, and if it is stopped and its socket fills."""
    puppet, agent, ids = held
    agent.questions.answered = False
    if stopped:
        agent.reads.clear()
    first = took(puppet, "free a0")
    assert PROMPT * 0.9 < first < PROMPT * 2
    rest = took(puppet, f"freemany a 1 {COUNT - 4}")
    assert rest < COUNT * 0.01 + PROMPT
    agent.reads.set()
    assert wait_for(lambda: sorted(agent.questions.released) == ids[: COUNT - 3])


def test_once_answers_are_prompt_again_a_free_waits(held):
    """The memory is free for the next allocation."""
    puppet, agent, ids = held
    agent.questions.answered = False
    took(puppet, "free a0")
    agent.questions.answer_all()
    assert took(puppet, "free a1") < PROMPT / 2  # the answer to the first was late: no free waits yet
    assert wait_for(lambda: ids[1] in agent.questions.released)
    agent.questions.answer_all()
    time.sleep(0.2)
    puppet.must("thread t free a2")
    time.sleep(0.3)
    assert puppet.tell("done t") == "running"
    agent.questions.answer_all()
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_what_a_daemon_did_not_hear_its_successor_does(machine, held):
    """It may hold descriptors of it, too: a supervisor kept them."""
    puppet, agent, ids = held
    agent.quiesce()
    agent.count("hand_over")
    agent.bring_back()
    machine.daemon.silent = True
    agent.close()
    puppet.must("free a0", "free a1")
    machine.daemon.silent = False
    again = machine.daemon.accept()
    assert wait_for(lambda: sorted(again.questions.released) == ids[:2])


@pytest.mark.parametrize("times", [1, 3])
def test_what_a_daemon_refused_is_said_again(held, times):
    """It has too many requests at once. The others hold the memory until it hears of the free."""
    puppet, agent, ids = held
    agent.questions.refuses = times
    assert took(puppet, "free a0", "free a1") < PROMPT
    assert wait_for(lambda: sorted(agent.questions.released) == ids[:2])
    assert agent.questions.refuses == 0
    time.sleep(0.7)  # the agent looks at least once more
    assert sorted(agent.questions.released) == ids[:2]
