"""Phase CLOSED: the daemon sees what waits at the gate and what the devices work on, and lets single calls through."""

import time

import pytest
from packets import (
    CLEAR,
    CLOSED,
    PREPARED,
    QUIESCE,
    QUIESCED,
    RUNNING,
    SEVERAL_THREADS,
    WRONG_PHASE,
    Refused,
)
from patience import wait_for


@pytest.fixture
def closed(target):
    """A puppet with memory `m`, which two ranks meet in, and streams s and u; its gate is closed."""
    puppet, agent = target
    puppet.must("alloc m 4096", "setword m 0", "stream u", "alloc a 4096", "sync")
    agent.export()
    agent.close_gate()
    return puppet, agent


def waiting(agent, count=1):
    """The threads at the gate, once there are so many."""
    assert wait_for(lambda: len(agent.look().parked) == count)
    return agent.look().parked


def test_a_process_at_rest_says_so_and_may_be_quiesced_at_once(closed):
    puppet, agent = closed
    assert agent.status().phase == CLOSED
    assert wait_for(lambda: not agent.look().busy)
    agent.quiesce(pulse_ms=0)
    assert agent.status().phase == QUIESCED
    agent.ask("resume")
    puppet.must("fill a 1", "sync", "check a 1")


def test_a_process_that_is_quiesced_makes_calls_that_another_node_needs_and_is_quiesced_again(closed):
    puppet, agent = closed
    agent.quiesce(pulse_ms=0)
    puppet.must("thread t fill a 3")
    agent.close_gate()
    assert agent.status().phase == CLOSED
    (one,) = waiting(agent)
    assert puppet.tell("done t") == "running"
    assert agent.admit(one.thread) == 1
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    assert wait_for(lambda: not agent.look().busy)
    agent.quiesce(pulse_ms=0)
    assert agent.status().phase == QUIESCED
    agent.ask("resume")
    puppet.must("sync", "check a 3")


def test_what_waits_passes_once_the_gate_opens_again(closed):
    puppet, agent = closed
    puppet.must("thread t fill a 1")
    (one,) = waiting(agent)
    assert (one.signature, one.launched, one.flags) == (0, 0, CLEAR)
    assert wait_for(lambda: not agent.look().busy)  # from here on nothing changes
    time.sleep(0.1)
    assert agent.look().unchanged_us > 50_000
    assert puppet.tell("done t") == "running"
    agent.close_gate(0)
    assert agent.status().phase == PREPARED
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    agent.ask("resume")
    puppet.must("sync", "check a 1")


def test_a_resume_and_the_end_of_the_daemon_open_it_as_well(machine):
    for end in ("resume", "close"):
        puppet, agent = machine.target()
        puppet.must("alloc a 4096")
        agent.export()
        agent.close_gate()
        puppet.must("thread t fill a 1")
        waiting(agent)
        agent.ask("resume") if end == "resume" else agent.close()
        assert wait_for(lambda puppet=puppet: puppet.tell("done t") == "ok")
        if end == "close":
            assert machine.daemon.accept().hello.phase == RUNNING


@pytest.mark.parametrize("kind", ["look", "admit"])
def test_nothing_is_looked_at_or_admitted_while_the_gate_is_open(target, kind):
    puppet, agent = target
    puppet.must("alloc a 4096")
    agent.export()
    with pytest.raises(Refused) as caught:
        agent.look() if kind == "look" else agent.admit(0)
    assert caught.value.code == WRONG_PHASE


def test_one_thread_passes_and_the_other_waits_on(closed):
    puppet, agent = closed
    puppet.must("thread t fill a 3")
    (first,) = waiting(agent)
    puppet.must("thread v fill m 4")
    waiting(agent, 2)
    assert agent.admit(first.thread) == 1
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    assert puppet.tell("done v") == "running"
    assert [one.thread != first.thread for one in waiting(agent)] == [True]
    assert agent.look().admitted == 1
    assert agent.admit(first.thread) == 0  # it waits no more
    assert wait_for(lambda: not agent.look().busy)
    agent.quiesce(pulse_ms=0)
    agent.ask("resume")
    puppet.must("sync", "check a 3")


def let_through(agent, thread, calls):
    """Has the agent admit so many calls. It says how many it has admitted before its patience ended."""
    while calls > 0:
        done = agent.admit(thread, calls)
        assert 0 <= done <= calls
        calls -= done


def test_a_thread_makes_as_many_calls_as_it_may(closed):
    puppet, agent = closed
    puppet.must("thread t opendoor 12 u")
    (one,) = waiting(agent)
    let_through(agent, one.thread, 5)
    assert [each.thread for each in waiting(agent)] == [one.thread]
    assert puppet.tell("done t") == "running"
    let_through(agent, one.thread, 7)
    assert agent.admit(one.thread, 16) == 0
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_a_launch_that_waits_for_a_partner_is_named_and_its_partner_is_told_apart(closed):
    puppet, agent = closed
    agent.close_gate(0)
    puppet.must("reduce m 0 1 s")
    agent.close_gate()
    puppet.must("thread t reduce m 1 1 u")
    (partner,) = waiting(agent)
    gate = agent.look()
    (stuck,) = gate.incomplete
    assert (gate.busy, stuck.launched, stuck.kernel) == (1, 1, "cross_device_reduce")
    assert stuck.signature not in (0, partner.signature)  # of another stream
    assert partner.signature != 0
    assert (partner.launched, partner.flags) == (0, CLEAR)
    assert agent.admit(partner.thread) == 1
    assert wait_for(lambda: not agent.look().busy)
    gate = agent.look()
    assert (gate.incomplete, gate.in_flight) == ([], 0)


def test_a_graph_that_holds_such_a_launch_is_one(closed):
    puppet, agent = closed
    agent.close_gate(0)
    puppet.must(
        "capture s 1", "reduce m 0 1 s 2", "graph one s", "capture u 1", "reduce m 1 1 u 2", "graph other u",
        "capture s 1", "fill a 1 s", "graph plain s", "launchgraph one s",
    )  # fmt: skip
    agent.close_gate()
    puppet.must("thread t launchgraph other u", "thread v launchgraph plain u")
    partner, plain = sorted(waiting(agent, 2), key=lambda each: not each.signature)
    (stuck,) = agent.look().incomplete
    assert (stuck.kernel, plain.signature) == ("cross_device_reduce", 0)
    assert partner.signature not in (0, stuck.signature)  # of another stream
    assert agent.admit(partner.thread) == 1
    assert wait_for(lambda: not agent.look().busy)
    agent.close_gate(0)
    assert wait_for(lambda: [puppet.tell(f"done {thread}") for thread in "tv"] == ["ok", "ok"])
    puppet.must(
        "sync", "destroygraph other", "capture u 1", "fill a 2 u", "graph again u"
    )  # with the same handle, likely
    agent.close_gate()
    puppet.must("thread w launchgraph again u")
    assert [each.signature for each in waiting(agent)] == [0]


def test_the_next_call_on_a_stream_that_waits_is_not_clear(closed):
    puppet, agent = closed
    agent.close_gate(0)
    puppet.must("reduce m 0 1 s")
    agent.close_gate()
    puppet.must("thread t reduce m 0 2 s", "thread v alloc b 4096")
    parked = waiting(agent, 2)
    ahead = next(each for each in parked if each.signature)
    other = next(each for each in parked if not each.signature)
    assert (ahead.launched, ahead.flags, other.flags) == (1, 0, 0)  # an allocation has no stream, and a device works
    assert agent.admit(ahead.thread, walk=1) == 0


def test_a_walk_does_not_wait_for_what_it_enqueues(closed):
    """A walk ends early where the thread is slow to come back, as on a busy machine; the next one is to wait."""
    puppet, agent = closed
    for _ in range(10):
        puppet.must("thread t reduce m 1 1 u 6 50")
        (one,) = waiting(agent)
        if agent.admit(one.thread, 16, walk=1) == 6:  # it takes 50 ms at most, and that work 300
            assert agent.look().busy
            return
        agent.close_gate(0)
        assert wait_for(lambda: puppet.tell("done t") == "ok")
        puppet.must("reduce m 0 1 s", "sync", "setword m 0", "sync")
        agent.close_gate()
    pytest.fail("no walk made all calls")


def test_a_walk_stops_before_a_coupled_call(closed):
    puppet, agent = closed
    puppet.must("thread t reduce m 1 1 u 6")
    (one,) = waiting(agent)
    assert one.signature == 0
    walked = 0
    while walked < 6:  # a walk ends early where the thread is slow to come back
        walked += agent.admit(one.thread, 100, walk=1)
    assert walked == 6
    (now,) = waiting(agent)
    assert now.thread == one.thread
    assert now.signature != 0
    assert agent.admit(one.thread, 100, walk=1) == 0
    assert wait_for(lambda: not agent.look().busy)


LOCAL, OWED, THROUGH = 1, 2, 3  # kinds of walk


def goes_on(agent, thread, calls, **how):
    """Has the thread make so many calls, and sees that it makes no more: it may be slow to come back between two."""
    walked = 0

    def all_made():
        nonlocal walked
        walked += agent.admit(thread, 100, **how)
        return walked >= calls

    wait_for(all_made)
    assert walked == calls
    assert wait_for(lambda: [each for each in agent.look().parked if each.thread == thread])
    assert agent.admit(thread, 100, **how) == 0
    return next(each for each in agent.look().parked if each.thread == thread)


def test_a_walk_goes_on_through_the_coupled_calls_that_are_allowed(closed):
    """Between two of them local calls need not wait for the first, which its partner has still to join."""
    puppet, agent = closed
    puppet.must("thread t meetings m 1 5 2 u")
    (first,) = waiting(agent)
    now = goes_on(agent, first.thread, 2, walk=LOCAL)
    assert now.signature != 0
    assert agent.look().made == []
    assert agent.admit(now.thread, 100, walk=OWED, allowed={now.signature: 3}) == 0  # it has made none of these
    behind = goes_on(agent, now.thread, 1 + 3 + 3, walk=LOCAL, allowed={now.signature: 3, 5: 9})
    assert (behind.signature, behind.flags) == (0, 0)
    gate = agent.look()
    assert gate.made == [(now.signature, 3, now.thread)]
    assert [(each.signature, each.launched) for each in gate.incomplete] == [(now.signature, 3)]
    goes_on(agent, now.thread, 3, walk=OWED, allowed={now.signature: 4})


def test_a_thread_that_owes_a_call_leads_through_others_only_where_it_is_told_to(closed):
    puppet, agent = closed
    puppet.must("thread t meetings m 1 6 1 u s")
    (first,) = waiting(agent)
    one = goes_on(agent, first.thread, 1, walk=LOCAL)
    assert agent.admit(one.thread) == 1
    allowed = {one.signature: 3}
    stopped = goes_on(agent, one.thread, 1, walk=OWED, allowed=allowed)
    assert stopped.signature not in (0, one.signature)
    goes_on(agent, one.thread, 7, walk=THROUGH, allowed=allowed)
    made = {signature: launched for signature, launched, _ in agent.look().made}
    assert made == {one.signature: 3, stopped.signature: 2}


def test_of_a_signature_that_two_threads_have_made_none_owes_a_call(closed):
    puppet, agent = closed
    puppet.must("thread t meetings m 1 3 0 u")
    (first,) = waiting(agent)
    allowed = {first.signature: 3}
    assert agent.admit(first.thread) == 1
    puppet.must("thread v reduce m 1 9 u")
    assert wait_for(lambda: len(agent.look().parked) == 2)
    second = next(each for each in agent.look().parked if each.thread != first.thread)
    assert agent.admit(second.thread) == 1
    assert wait_for(lambda: agent.look().made == [(first.signature, 2, SEVERAL_THREADS)])
    assert agent.admit(first.thread, 100, walk=OWED, allowed=allowed) == 0
    goes_on(agent, first.thread, 1, walk=LOCAL, allowed=allowed)


def test_a_walk_stops_where_work_does_not_end(closed):
    puppet, agent = closed
    agent.close_gate(0)
    puppet.must("setword a 0", "sync", "spinuntil a 3 u")
    agent.close_gate()
    puppet.must("thread t spin 0 u")
    (one,) = waiting(agent)
    assert one.flags == 0
    assert agent.admit(one.thread, 4, walk=1) == 0
    assert agent.admit(one.thread, 4) == 1  # any call, behind the one that spins
    agent.close_gate(0)
    puppet.must("writevalue a 3 s")
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_captures_are_held_until_the_gate_opens(closed):
    puppet, agent = closed
    puppet.must("thread t capture u 2")
    (one,) = waiting(agent)
    assert agent.admit(one.thread) == 1
    assert wait_for(lambda: agent.look().held == 1)
    gate = agent.look()
    assert (gate.captures, gate.in_flight, gate.parked) == (0, 0, [])
    agent.close_gate(0)
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    assert agent.status().captures == 1
    agent.close_gate()
    gate = agent.look()
    assert (gate.captures, gate.busy) == (1, 1)  # nothing was synchronised: that would break it
    agent.close_gate(0)
    puppet.must("endcapture u")


@pytest.mark.parametrize("call", ["cuCtxSynchronize", "cuStreamQuery"])
def test_a_capture_waits_for_an_examination_that_was_begun_behind_the_gate(closed, machine, call):
    """The threads that examine the devices may come to their calls only once the gate is open again."""
    puppet, agent = closed
    puppet.must("thread t spin 600 u")
    (one,) = waiting(agent)
    assert wait_for(lambda: not agent.look().busy)
    (machine.folder / "sim/faults").write_text(f"{call}:1+:delay=300\n")
    assert agent.admit(one.thread) == 1
    assert agent.look().busy == 1
    agent.close_gate(0)
    puppet.must("capture s 2")
    time.sleep(0.7)
    puppet.must("endcapture s")


def test_captures_may_begin_after_a_resume(closed):
    puppet, agent = closed
    agent.ask("resume")
    puppet.must("thread t capture u 2")
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    puppet.must("endcapture u")


def test_a_device_is_busy_from_an_admission_until_a_look_that_came_after_it(closed):
    puppet, agent = closed
    puppet.must("thread t spin 400 u")
    (one,) = waiting(agent)
    assert wait_for(lambda: not agent.look().busy)
    assert agent.admit(one.thread) == 1
    assert agent.look().busy == 1
    assert wait_for(lambda: not agent.look().busy)
    assert puppet.script(["done t", "query u"]) == ["ok", "ok"]


def test_a_quiesce_that_fails_leaves_the_gate_open(closed):
    puppet, agent = closed
    agent.close_gate(0)
    puppet.must("reduce m 0 1 s")
    agent.close_gate()
    with pytest.raises(Refused, match="not idle"):
        agent.ask("quiesce", QUIESCE.pack(agent.transaction, 300, 0))
    assert agent.status().phase == PREPARED
    puppet.must("reduce m 1 1 u", "sync")
