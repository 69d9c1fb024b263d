"""Requests of the daemon and actions of the agent, step by step; the program checks its bytes."""

import os
import struct

import pytest
from packets import (
    EXPORT_REQUEST,
    FRESH,
    FROZEN,
    HANDED_OVER,
    ID_LIST,
    INCOMPLETE,
    KINDS,
    MAPPED,
    NO_DESCRIPTORS,
    PREPARED,
    QUIESCE,
    QUIESCED,
    RUNNING,
    STAGE,
    STAGED,
    UNKNOWN,
    WRONG_PHASE,
    WRONG_TRANSACTION,
    Refused,
    frame,
)
from patience import wait_for

MiB = 1 << 20


def refused(agent, kind, payload=None, fds=()):
    with pytest.raises(Refused) as caught:
        agent.ask(kind, payload, fds)
    return caught.value.code


def test_hello_names_the_process_and_its_device(machine):
    daemon = machine.listen()
    puppet = machine.ready()
    hello = daemon.accept().hello
    assert (hello.role, hello.vendor, hello.phase, hello.transaction, hello.generation) == (1, 1, RUNNING, 0, 0)
    assert hello.pid == puppet.process.pid
    assert (hello.job, hello.token) == (b"llm", b"ab" * 20)
    assert hello.flags == FRESH  # it comes before the first look at a device


def test_status_counts(target):
    puppet, agent = target
    puppet.must("alloc a 0x300000", "alloc b 100", "create h 0x200000", "pin x 8192", "newpool p 1")
    puppet.must("poolalloc c 5000 s p", "asyncalloc d 5000 s")
    status = agent.status()
    assert status.phase == RUNNING
    assert status.covered_bytes == 4 * MiB + 2 * MiB + 2 * MiB + 32 * MiB
    assert (status.handles, status.allocations, status.contexts) == (4, 4, 1)
    assert status.pinned_host_bytes == 8192
    assert status.uncovered == {1: (False, 5000, 1)}
    assert [(ordinal, handles, size) for _, ordinal, handles, size in status.devices] == [(0, 4, 40 * MiB), (1, 0, 0)]
    assert len({uuid for uuid, *_ in status.devices}) == 2
    puppet.must("asyncfree c s", "asyncfree d s", "sync s", "unpin x", "free a", "release h", "managed m 4096")
    status = agent.status()
    assert status.covered_bytes == 2 * MiB
    assert status.pinned_host_bytes == 0
    assert status.uncovered == {4: (True, 4096, 1)}
    assert status.gated_calls > 10


def test_a_whole_cycle_keeps_every_byte(target):
    puppet, agent = target
    puppet.must("alloc a 0x300000", "alloc b 4096", "create h 0x400000", "reserve v 0x800000")
    puppet.must("map v 0 0x400000 h", "access v 0 0x400000 0 3", "map v 0x400000 0x400000 h")
    puppet.must("access v 0x400000 0x400000 0 1", "fill a 1 s", "fill b 2 s")
    handles, size = agent.take()
    assert (handles, size) == (3, 4 * MiB + 2 * MiB + 4 * MiB)
    assert agent.status().phase == HANDED_OVER
    agent.bring_back()
    status = agent.status()
    assert (status.phase, status.generation, status.transaction) == (RUNNING, 1, 0)
    puppet.must("check a 1", "check b 2")
    assert puppet.script(["getaccess v 0 0", "getaccess v 0x400000 0", "getaccess v 0 1"]) == ["ok 3", "ok 1", "ok 0"]
    puppet.must("unmap v 0 0x800000", "release h", "free a", "free b")


def test_handed_over_memory_is_gone_until_it_comes_back(machine):
    """Another process takes the whole device meanwhile; it could not while one byte was still held."""
    machine.memory = 256 * MiB
    puppet, agent = machine.target()
    puppet.must("allocmany a 40 0x400000", "fill a7 9", "sync")
    other = machine.ready(socket=False)
    assert other.tell("alloc most 0x8000000") == "2"
    agent.take()
    assert len(agent.custody.held) == 40
    assert other.tell("alloc most 0x8000000") == "2"  # the daemon's descriptors hold it
    agent.bring_back()
    puppet.must("check a7 9", "freemany a 0 40")
    assert other.tell("alloc most 0x8000000") == "ok"


def test_mappings_name_place_and_process(target):
    puppet, agent = target
    puppet.must("create h 0x200000", "reserve v 0x600000", "map v 0 0x200000 h", "map v 0x400000 0x200000 h")
    puppet.must("access v 0 0x200000 0 3", "access v 0x400000 0x200000 0 1", "alloc a 0x200000")
    by_size = {handle.id: handle for handle in agent.export()}
    assert len(by_size) == 2
    found = agent.mappings()
    assert [row[1] for row in found] == sorted(row[1] for row in found)
    mine = [row for row in found if by_size[row[0]].mappings == 2]
    assert mine[1][1] - mine[0][1] == 0x400000
    assert [row[4:] for row in mine] == [(1, 1), (1, 0)]
    (plain,) = [row for row in found if by_size[row[0]].mappings == 1]
    assert plain[3:] == (2 * MiB, 1, 1)


def test_each_request_is_legal_only_in_its_phases(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    export = EXPORT_REQUEST.pack(7, 0, 253, 0)
    ids = ID_LIST.pack(7, 0, 0)
    stage = STAGE.pack(7, 0, 1)
    bodies = {"export": export, "mappings": export, "quiesce": QUIESCE.pack(7, 1000, 20), "import": ids, "stage": stage}

    def all_refused(*kinds):
        for kind in kinds:
            assert refused(agent, kind, bodies.get(kind)) == WRONG_PHASE, kind

    all_refused("quiesce", "hand_over", "import", "map", "resume", "freeze", "thaw", "discard", "mappings")
    handles = agent.export()
    assert agent.status().phase == PREPARED
    all_refused("hand_over", "import", "map", "freeze", "thaw", "discard")
    agent.quiesce()
    assert agent.status().phase == QUIESCED
    all_refused("quiesce", "import", "map", "freeze", "thaw", "discard")
    assert agent.count("hand_over") == (1, 2 * MiB)
    all_refused("export", "quiesce", "hand_over", "resume", "thaw")
    agent.ask("freeze")
    assert agent.status().flags & FROZEN
    all_refused("import", "map", "discard", "freeze", "resume", "export")
    agent.ask("thaw")
    agent.give_back([handles[0].id])
    assert agent.count("discard") == (1, 2 * MiB)
    agent.give_back([handles[0].id])
    agent.count("map")
    assert agent.status().phase == MAPPED
    all_refused("export", "quiesce", "hand_over", "import", "map", "freeze", "thaw")
    assert agent.count("discard") == (1, 2 * MiB)
    assert agent.status().phase == HANDED_OVER
    agent.bring_back()


def test_another_transaction_is_refused(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    agent.export()
    other = struct.pack("<Q", 8)
    assert refused(agent, "export", EXPORT_REQUEST.pack(8, 0, 253, 0)) == WRONG_TRANSACTION
    assert refused(agent, "resume", other) == WRONG_TRANSACTION
    assert refused(agent, "quiesce", QUIESCE.pack(8, 1000, 20)) == WRONG_TRANSACTION
    agent.ask("resume")
    assert agent.status().generation == 0
    assert refused(agent, "export", EXPORT_REQUEST.pack(0, 0, 253, 0)) == WRONG_TRANSACTION


def test_incomplete_is_refused(target):
    puppet, agent = target
    puppet.must("alloc a 0x200000", "alloc b 0x200000")
    first = agent.export()
    puppet.must("alloc late 0x200000")
    agent.quiesce()
    assert refused(agent, "hand_over") == INCOMPLETE
    assert agent.status().phase == QUIESCED
    agent.export(after=first[-1].id)
    agent.count("hand_over")
    ids = sorted(agent.custody.held)
    agent.give_back(ids[:2])
    assert refused(agent, "map") == INCOMPLETE
    again = ID_LIST.pack(7, 1, 0) + struct.pack("<Q", ids[0])
    assert refused(agent, "import", again, [agent.custody.held[ids[0]]]) == UNKNOWN
    bogus = ID_LIST.pack(7, 1, 0) + struct.pack("<Q", 12345)
    assert refused(agent, "import", bogus, [agent.custody.held[ids[0]]]) == UNKNOWN
    agent.give_back(ids[2:])
    agent.count("map")
    agent.ask("resume")


def test_a_descriptor_of_another_kind_is_no_memory(target, tmp_path):
    puppet, agent = target
    puppet.must("alloc a 0x200000", "fill a 4", "sync")
    agent.take()
    (id_,) = agent.custody.held
    before = puppet.tell("descriptors")
    with (tmp_path / "file").open("wb") as file:
        body = ID_LIST.pack(7, 1, 0) + struct.pack("<Q", id_)
        with pytest.raises(Refused) as caught:
            agent.ask("import", body, [file.fileno()])
    assert caught.value.vendor_error != 0
    assert puppet.tell("descriptors") == before
    agent.bring_back()
    puppet.must("check a 4")


def test_staged_descriptors_are_kept_and_returned(target, tmp_path):
    puppet, agent = target
    puppet.must("alloc a 0x200000")
    agent.take()
    before = int(puppet.tell("descriptors"))
    files = []
    for i in range(5):
        files.append(os.open(tmp_path / f"segment{i}", os.O_CREAT | os.O_RDWR))
        os.write(files[-1], b"segment %d" % i)
    agent.stage(files[:2], 0, 5)
    assert not agent.status().flags & STAGED
    agent.stage(files[2:], 2, 5)
    assert agent.status().flags & STAGED
    assert int(puppet.tell("descriptors")) == before + 5
    agent.ask("freeze")
    payload, fds = agent.ask("unstage", STAGE.pack(7, 1, 0))
    assert STAGE.unpack(payload) == (7, 1, 5)
    assert [os.pread(fd, 100, 0) for fd in fds] == [b"segment %d" % i for i in range(1, 5)]
    for fd in fds + files:
        os.close(fd)
    agent.ask("thaw")
    assert refused(agent, "drop", struct.pack("<Q", 8)) == WRONG_TRANSACTION
    for _ in range(2):  # the second time nothing is staged, as in a process that came back from an image
        agent.ask("drop")
        assert int(puppet.tell("descriptors")) == before
    agent.bring_back()


def test_two_thousand_handles_under_a_soft_limit_of_1024(machine):
    machine.memory = 5 << 30
    puppet, agent = machine.target()
    puppet.must("limit 1024", "allocmany a 2100 0x200000", "fill a0 1", "fill a2099 2", "sync")
    for _ in range(2):
        assert agent.cycle() == (2100, 2100 * 2 * MiB)
    puppet.must("check a0 1", "check a2099 2")
    assert int(puppet.tell("descriptors")) < 40


def test_more_than_ten_thousand_allocations(target):
    puppet, agent = target
    puppet.must("allocmany a 12000 700", "fill a5 5", "fill a11999 6", "sync")
    agent.cycle()
    assert agent.status().allocations == 12000
    puppet.must("check a5 5", "check a11999 6", "freemany a 0 12000")


def test_a_process_without_descriptors_says_so(target):
    puppet, agent = target
    puppet.must("limit 64", "allocmany a 5 0x200000", "eat 0")
    with pytest.raises(Refused) as caught:
        agent.export()
    assert caught.value.code == NO_DESCRIPTORS
    assert agent.status().phase == RUNNING
    puppet.must("fill a0 1", "sync", "check a0 1")


def test_with_few_descriptors_batches_are_small(target):
    puppet, agent = target
    puppet.must("limit 128", "allocmany a 20 0x200000", "fill a3 3", "sync", "eat 4")
    handles = agent.export()
    assert len(handles) == 20
    agent.quiesce()
    agent.count("hand_over")
    agent.give_back(sorted(agent.custody.held), batch=3)
    agent.count("map")
    agent.ask("resume")
    puppet.must("check a3 3")


MALFORMED = {
    "short": b"GCRW",
    "magic": b"X" * 40,
    "version": struct.pack("<IHHQII", 0x57524347, 9, 16, 5, 0, 0),
    "length": struct.pack("<IHHQII", 0x57524347, 1, 16, 5, 4, 0),
    "descriptors": struct.pack("<IHHQII", 0x57524347, 1, 16, 5, 0, 3),
    "short record": frame(KINDS["export"], 5, b"1234"),
    "ids": frame(KINDS["import"], 5, ID_LIST.pack(7, 4, 0), 0),
    "moves": frame(KINDS["moved"], 5, struct.pack("<QII", 7, 2, 32) + bytes(32)),
}
LATER = ("ids", "moves")  # before that they are refused, with any content


@pytest.mark.parametrize(
    ("name", "handed_over"),
    [(name, handed_over) for name in MALFORMED for handed_over in (False, True) if handed_over or name not in LATER],
)
def test_a_malformed_frame_closes_the_connection_and_nothing_else(machine, name, handed_over):
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000", "fill a 1", "sync")
    if handed_over:
        agent.take()
    before = int(puppet.tell("descriptors"))
    agent.link.send(MALFORMED[name])
    again = machine.daemon.accept()
    assert again.hello.phase == (HANDED_OVER if handed_over else RUNNING)
    assert wait_for(lambda: int(puppet.tell("descriptors")) == before)  # once it has looked at what the welcome brought
    if handed_over:
        again.custody.held = agent.custody.held
        agent.custody.held = {}
        again.bring_back()
    puppet.must("check a 1", "free a")


def test_stray_descriptors_are_closed(machine, tmp_path):
    puppet, agent = machine.target()
    before = int(puppet.tell("descriptors"))
    with (tmp_path / "file").open("wb") as file:
        agent.send("status", b"", [file.fileno()] * 100)
    machine.daemon.accept()
    assert wait_for(lambda: int(puppet.tell("descriptors")) == before)


def test_an_unknown_request_is_answered(target):
    _, agent = target
    agent._request += 1
    agent.link.send(frame(200, agent._request))
    with pytest.raises(Refused) as caught:
        agent.reply("status", agent._request)
    assert caught.value.code == 1
    assert agent.status().phase == RUNNING


def test_a_target_without_a_daemon_runs(machine):
    puppet = machine.ready()  # GCR_SOCKET names a socket that is not there
    puppet.must("alloc a 0x200000", "fill a 1", "check a 1", "free a")
    assert puppet.end() == 0
