"""Frees while exports exist; deaths of the daemon; forks; a program that closes every descriptor."""

import socket
import time

import pytest
from packets import HANDED_OVER, MAPPED, PREPARED, QUIESCE, RUNNING, STAGE, STAGED
from patience import wait_for

MiB = 1 << 20


# ---- while exports exist ------------------------------------------------------------------------------------------


def test_a_free_tells_the_daemon_before_it_returns(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000", "alloc b 0x200000", "create h 0x200000")
    handles = agent.export()
    puppet.must("free a")
    assert agent.questions.released == [handles[0].id]
    puppet.must("release h")
    assert agent.questions.released == [handles[0].id, handles[2].id]
    puppet.must("alloc c 0x200000", "free c")
    assert len(agent.questions.released) == 2  # it was never exported
    agent.quiesce()
    agent.export()
    assert agent.count("hand_over") == (1, 2 * MiB)
    agent.bring_back()
    puppet.must("free b")
    # The transaction is over, but what came back is held by others, too.
    assert agent.questions.released[2:] == [handles[1].id]


def test_a_free_waits_until_everyone_let_go(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    agent.export()
    agent.questions.answered = False
    puppet.must("thread t free a")
    time.sleep(0.2)
    assert puppet.tell("done t") == "running"
    agent.close()
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_a_free_during_quiesce_is_no_deadlock(target):
    """The freeing thread is in flight: the agent must read the daemon's answer while it waits for that very thread."""
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    agent.export()
    agent.questions.answered = False
    puppet.must("thread t free a")
    assert wait_for(lambda: len(agent.questions.released) == 1)
    request = agent.begin("quiesce", QUIESCE.pack(agent.transaction, 8000, 20))
    time.sleep(0.1)
    agent.questions.answered = True
    agent.questions.hear(2, (1 << 63) + 1, b"\0" * 16)  # the answer that was held back
    agent.reply("quiesce", request)
    assert puppet.tell("done t") in ("ok", "running")
    agent.ask("resume")
    assert wait_for(lambda: puppet.tell("done t") in ("ok", "what?"))


# ---- the daemon dies ------------------------------------------------------------------------------------------------


def test_a_daemon_that_dies_while_prepared(machine):
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000", "fill a 1", "sync")
    agent.export()
    agent.close()
    again = machine.daemon.accept()
    assert (again.hello.phase, again.hello.transaction) == (RUNNING, 0)
    puppet.must("free a")
    assert again.questions.released == []
    again.cycle()


def test_a_daemon_that_dies_while_quiesced(machine):
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000")
    agent.export()
    agent.quiesce()
    puppet.must("thread t fill a 1")
    time.sleep(0.1)
    assert puppet.tell("done t") == "running"
    agent.close()
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    assert machine.daemon.accept().hello.phase == RUNNING


def test_a_daemon_that_dies_in_the_middle_of_quiesce(machine):
    puppet, agent = machine.target()
    puppet.must("alloc flag 4096", "setword flag 0", "stream u", "sync", "spinuntil flag 1 s")
    agent.export()
    agent.begin("quiesce", QUIESCE.pack(agent.transaction, 60000, 20))
    time.sleep(0.1)
    puppet.must("thread t stream v")
    agent.close()
    again = machine.daemon.accept()
    assert again.hello.phase == RUNNING
    assert wait_for(lambda: puppet.tell("done t") == "ok")
    puppet.must("writevalue flag 1 u", "sync s")


@pytest.mark.parametrize("where", ["handed over", "frozen", "half imported", "mapped", "staged"])
def test_a_daemon_that_dies_later_is_waited_for(machine, where, tmp_path):
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000", "alloc b 0x400000", "fill a 1", "fill b 2", "sync")
    agent.take()
    ids = sorted(agent.custody.held)
    if where == "frozen":
        agent.ask("freeze")
    if where == "half imported":
        agent.give_back(ids[:1])
    if where == "mapped":
        agent.give_back(ids)
        agent.count("map")
    if where == "staged":
        with (tmp_path / "segment").open("wb") as file:
            agent.stage([file.fileno()])
    held, agent.custody.held = agent.custody.held, {}
    agent.close()
    again = machine.daemon.accept()
    assert again.hello.phase == (MAPPED if where == "mapped" else HANDED_OVER)
    assert again.hello.transaction == 7
    again.custody.held = held
    if where == "frozen":
        assert again.status().flags & 2
        again.ask("thaw")
    if where == "half imported":
        again.count("discard")
    if where == "staged":
        assert again.hello.flags & STAGED
        _, fds = again.ask("unstage", STAGE.pack(7, 0, 0))
        assert len(fds) == 1
        socket.close(fds[0])
        again.ask("drop")
    if where == "mapped":
        again.count("discard")
    again.bring_back()
    puppet.must("check a 1", "check b 2", "free a", "free b")


def test_a_late_daemon_is_found(machine):
    puppet = machine.ready()
    time.sleep(0.4)
    agent = machine.listen().accept()
    puppet.must("alloc a 0x200000")
    assert agent.cycle() == (1, 2 * MiB)


# ---- the process does unusual things -------------------------------------------------------------------------------


def test_a_child_of_a_fork_has_nothing_of_the_agent(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    agent.export()
    assert puppet.tell("fork").startswith("0 sockets 1 threads")
    assert agent.status().phase == PREPARED
    agent.ask("resume")


def test_a_child_that_uses_the_driver_has_its_own_agent(machine):
    daemon = machine.listen()
    puppet = machine.puppet()
    puppet.must("thread t fork nap 500 init")
    child = daemon.accept()
    assert wait_for(lambda: puppet.tell("done t").endswith("threads, ok"))
    assert child.hello.pid != puppet.process.pid
    puppet.must("init", "primary p 0", "alloc a 4096")
    agent = daemon.accept()
    assert agent.hello.pid == puppet.process.pid
    assert agent.cycle()[0] == 1


def test_forks_while_handles_leave(target):
    puppet, agent = target
    puppet.must("allocmany a 100 0x200000")
    puppet.must("thread t repeat 30 fork")
    for _ in range(10):
        agent.export(limit=7)
        agent.undo_prepare()
    assert wait_for(lambda: puppet.tell("done t").startswith("0 sockets 1 threads"))


def test_a_parked_process_can_fork(target):
    puppet, agent = target
    puppet.must("alloc a 4096")
    agent.take()
    puppet.must("thread t fill a 1")
    assert puppet.tell("fork").startswith("0 sockets 1 threads")
    agent.bring_back()
    assert wait_for(lambda: puppet.tell("done t") == "ok")


def test_a_child_without_the_handlers_of_fork_ends_while_its_parent_is_parked(target):
    """It has a copy of the closed gate, and no agent that would open it."""
    puppet, agent = target
    puppet.must("alloc a 4096")
    agent.take()
    assert puppet.tell("clone") == "7"
    agent.bring_back()
    puppet.must("fill a 1")


def test_a_program_that_closes_every_descriptor(machine):
    """Our number belongs to a stranger now: it stays open and untouched, and the agent connects anew."""
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000", "fill a 1", "sync")
    count = int(puppet.tell("descriptors"))
    assert puppet.tell("closeall") == "ok 1"
    again = machine.daemon.accept()
    assert again.hello.phase == RUNNING
    assert again.status().phase == RUNNING  # so it has closed what came with its welcome
    assert int(puppet.tell("descriptors")) == count + 1
    again.cycle()
    puppet.must("check a 1")
    agent.close()


def test_staged_descriptors_the_program_closed_are_not_closed_again(machine, tmp_path):
    puppet, agent = machine.target()
    puppet.must("alloc a 4096")
    agent.take()
    pair = socket.socketpair()
    agent.stage([pair[0].fileno()])
    count = int(puppet.tell("descriptors"))
    assert puppet.tell("closeall") == "ok 2"  # ours and the staged one: strangers have both numbers now
    again = machine.daemon.accept()
    _, fds = again.ask("unstage", STAGE.pack(7, 0, 0))
    assert fds == []
    again.ask("drop")
    assert int(puppet.tell("descriptors")) == count + 1
    again.custody.held, agent.custody.held = agent.custody.held, {}
    again.bring_back()
    for end in pair:
        end.close()


def test_the_lowest_numbers_stay_the_program_s(machine):
    puppet, _ = machine.target()
    plain = machine.ready(socket=False)
    assert puppet.tell("descriptors") == str(int(plain.tell("descriptors")) + 1)


def test_a_process_ends_while_it_is_suspended(machine):
    puppet, agent = machine.target()
    puppet.must("alloc a 4096")
    agent.take()
    assert puppet.end() == 0
