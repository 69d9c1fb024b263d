"""An agent leaves a suspended process, so that CRIU can save it, and comes back once its mark is gone."""

import os
import time
from pathlib import Path

import pytest
from packets import FROZEN, HANDED_OVER, RETURNED, STAGED, WRONG_PHASE, WRONG_TRANSACTION, Refused
from patience import wait_for

MiB = 1 << 20
SOON = 10.0  # seconds: 10 ms where the machine is not busy
COVER = "/memfd:gcr-addresses (deleted)"
DRIVER_CALLS = (
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemExportToShareableHandle",
    "cuDeviceGetUuid_v2",
)


def mark_of(machine, puppet) -> Path:
    return machine.folder / f"socket.away.{'ab' * 20}.{puppet.process.pid}"


def own(pid: int) -> list[str]:
    """Returns what the process has open, and which removed or nameless files it has mapped; without inode numbers."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(fd.readlink()).partition(":[")[0])
        except FileNotFoundError:
            continue  # closed just now
    maps = [line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return sorted(links) + sorted(part[5] for part in maps if len(part) == 6 and "(deleted)" in part[5])


def suspend(puppet, agent):
    """Hands the puppet's memory over, and stages a table and two segments with it."""
    puppet.must("alloc a 0x200000", "alloc b 0x400000", "fill a 1", "fill b 2", "sync")
    agent.cycle()  # a generation that is not 0
    agent.take()
    files = [os.memfd_create(name) for name in ("gcr-table", "gcr-arena", "gcr-arena")]
    agent.stage(files)
    for file in files:
        os.close(file)


def leave(machine, puppet, agent):
    """Returns what the agent had exported, once its connection has ended."""
    mark_of(machine, puppet).touch()
    agent.ask("leave")
    with pytest.raises(EOFError):
        agent.reply("leave", 0)
    held, agent.custody.held = agent.custody.held, {}
    return held


def come_back(machine, puppet, held):
    mark_of(machine, puppet).unlink()
    again = machine.daemon.accept(SOON)
    again.custody.held = held
    return again


def refused(agent, payload=None):
    with pytest.raises(Refused) as caught:
        agent.ask("leave", payload)
    return caught.value.code


def test_nothing_of_the_agent_is_left(machine):
    plain = machine.ready(socket=False)
    puppet, agent = machine.target()
    suspend(puppet, agent)
    assert {"/memfd:gcr-table (deleted)", "/memfd:gcr-arena (deleted)"} < set(own(puppet.process.pid))
    assert own(puppet.process.pid)[-1] == "/memfd:page (deleted)"  # mapped
    leave(machine, puppet, agent)
    files, left = own(plain.process.pid), own(puppet.process.pid)
    assert left[: len(files)] == files, "and no descriptor of the empty file that lies where device memory was"
    assert {*left[len(files) :]} == {COVER}


@pytest.mark.parametrize("frozen", [False, True])
def test_it_comes_back_as_it_was_when_the_mark_is_gone(machine, frozen):
    puppet, agent = machine.target()
    suspend(puppet, agent)
    if frozen:
        agent.ask("freeze")
    held = leave(machine, puppet, agent)
    time.sleep(0.3)
    assert len(machine.daemon.agents) == 1  # not while the mark is there
    again = come_back(machine, puppet, held)
    assert COVER not in own(puppet.process.pid)
    hello = again.hello
    assert (hello.phase, hello.transaction, hello.generation) == (HANDED_OVER, 7, 1)
    assert (hello.pid, hello.token) == (agent.hello.pid, agent.hello.token)
    assert hello.flags & (FROZEN | STAGED | RETURNED) == RETURNED | (FROZEN if frozen else 0)
    if frozen:
        again.ask("thaw")
    again.bring_back()
    puppet.must("check a 1", "check b 2")
    assert not again.status().flags & RETURNED
    assert again.cycle()[0] == 2


def test_it_leaves_as_often_as_it_is_asked(machine):
    puppet, agent = machine.target()
    suspend(puppet, agent)
    for _ in range(5):
        agent = come_back(machine, puppet, leave(machine, puppet, agent))
    agent.bring_back()
    puppet.must("check a 1", "check b 2")


def test_it_finds_a_daemon_that_began_meanwhile(machine):
    """A process that CRIU restored meets the same: another daemon, and no mark."""
    puppet, agent = machine.target()
    suspend(puppet, agent)
    held = leave(machine, puppet, agent)
    machine.daemon.close()
    machine.daemon.path.unlink()
    machine.listen()
    come_back(machine, puppet, held).bring_back()
    puppet.must("check a 1", "check b 2")


def test_without_a_mark_it_stays(machine):
    """It would be back at once, in the middle of the dump."""
    puppet, agent = machine.target()
    suspend(puppet, agent)
    before = own(puppet.process.pid)
    assert refused(agent) == WRONG_PHASE
    (machine.folder / f"socket.away.{'ab' * 20}.1").touch()  # of another process
    (machine.folder / f"socket.away.cd.{puppet.process.pid}").touch()  # of another container
    assert refused(agent) == WRONG_PHASE
    assert own(puppet.process.pid) == before
    assert agent.status().flags & STAGED


def test_it_is_legal_only_while_suspended(machine):
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000", "alloc b 0x200000", "fill a 1", "sync")
    mark_of(machine, puppet).touch()
    assert refused(agent) == WRONG_PHASE
    agent.export()
    assert refused(agent) == WRONG_PHASE
    agent.quiesce()
    assert refused(agent) == WRONG_PHASE
    agent.count("hand_over")
    assert refused(agent, bytes(8)) == WRONG_TRANSACTION
    ids = sorted(agent.custody.held)
    agent.give_back(ids[:1])
    assert refused(agent) == WRONG_PHASE  # half of its memory is there: CRIU would store it
    agent.give_back(ids[1:])
    agent.count("map")
    assert refused(agent) == WRONG_PHASE
    agent.ask("resume")
    puppet.must("check a 1")


def test_a_free_waits_until_the_process_runs_again(machine):
    puppet, agent = machine.target()
    suspend(puppet, agent)
    gone = min(agent.custody.held)
    puppet.must("thread t free a")
    held = leave(machine, puppet, agent)
    puppet.must("thread u free b")
    time.sleep(0.2)
    assert [puppet.tell("done t"), puppet.tell("done u")] == ["running", "running"]
    again = come_back(machine, puppet, held)
    assert again.questions.released == []
    again.bring_back()
    assert wait_for(lambda: puppet.tell("done t") == "ok" and puppet.tell("done u") == "ok")
    assert sorted(again.questions.released)[0] == gone and len(again.questions.released) == 2


def test_a_fork_meanwhile_is_a_child_without_an_agent(machine):
    puppet, agent = machine.target()
    suspend(puppet, agent)
    held = leave(machine, puppet, agent)
    assert puppet.tell("fork descriptors").startswith("0 sockets 1 threads, ")
    come_back(machine, puppet, held).bring_back()
    puppet.must("check a 1", "check b 2")


def test_an_exit_meanwhile_waits_as_in_any_suspended_program(machine):
    puppet, agent = machine.target()
    suspend(puppet, agent)
    held = leave(machine, puppet, agent)
    puppet.process.stdin.write("quit\n")
    puppet.process.stdin.flush()
    time.sleep(0.3)
    assert puppet.process.poll() is None
    come_back(machine, puppet, held).bring_back()
    assert puppet.process.wait(10) == 0


def test_it_makes_no_driver_call(machine):
    """A program in the middle of the driver's checkpoint dies of one."""
    puppet, agent = machine.target()
    suspend(puppet, agent)
    agent.ask("freeze")
    (machine.folder / "sim/faults").write_text("".join(f"{name}:1+:die\n" for name in DRIVER_CALLS))
    again = come_back(machine, puppet, leave(machine, puppet, agent))
    assert again.status().flags & FROZEN
    (machine.folder / "sim/faults").write_text("# none\n")
    again.ask("thaw")
    again.bring_back()
    puppet.must("check a 1", "check b 2")
