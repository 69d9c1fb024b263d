"""COPY_OUT, CREATE and COPY_IN: the agent copies its own process's bytes, and makes its memory anew."""

import fcntl
import os
import struct

import pytest
from packets import (
    COPIED_ONLY,
    COPY,
    COPY_RECORD,
    HANDED_OVER,
    ID_LIST,
    NO_DESCRIPTORS,
    QUIESCED,
    RUNNING,
    STAGED,
    UNKNOWN,
    WRONG_PHASE,
    Refused,
)
from patience import wait_for

MiB = 1 << 20
BAD_FRAME, NO_ROOM = 1, 13
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def segment(size, seals=SEALS):
    fd = os.memfd_create("segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def refused(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value.code


@pytest.fixture
def closed(machine):
    """A target on a machine that exports nothing."""
    machine.settings["GCR_SIM_QUIRKS"] = "noexport"
    return machine.target()


def pieces_of(handles, size):
    """The handles back to back in segments of `size` bytes, cut at their ends."""
    at, found = 0, []
    for handle in handles:
        done = 0
        while done < handle.size:
            length = min(handle.size - done, size - at % size)
            found.append((handle.id, done, at % size, length, at // size))
            done, at = done + length, at + length
    return found, -(-at // size)


def test_a_machine_that_exports_nothing_says_so(closed):
    puppet, agent = closed
    puppet.must("alloc a 0x300000", "create h 0x200000")
    status = agent.status()
    assert status.flags & COPIED_ONLY
    assert status.covered_bytes == 4 * MiB + 2 * MiB
    assert status.uncovered == {}
    assert [(handle.kept, handle.unexportable) for handle in agent.export()] == [(False, True)] * 2
    assert agent.custody.held == {}


def test_one_that_exports_does_not(target):
    puppet, agent = target
    puppet.must("alloc a 0x300000")
    assert not agent.status().flags & COPIED_ONLY
    assert [handle.unexportable for handle in agent.export()] == [False]


def test_every_byte_goes_out_and_comes_back(closed):
    """Mapped twice, mapped read-only, not mapped at all, and in a slab."""
    puppet, agent = closed
    puppet.must("alloc a 0x700000", "alloc b 4096", "create h 0x400000", "reserve v 0x800000", "create lone 0x200000")
    puppet.must("map v 0 0x400000 h", "access v 0 0x400000 0 3", "map v 0x400000 0x400000 h")
    puppet.must("access v 0x400000 0x400000 0 1", "fill a 1 s", "fill b 2 s", "sync")
    before = int(puppet.tell("descriptors"))
    for _ in range(2):
        handles = agent.export()
        assert [handle.kept for handle in handles] == [False] * 4
        agent.quiesce()
        pieces, count = pieces_of(handles, 3 * MiB)
        fds = [segment(3 * MiB) for _ in range(count)]
        total = sum(handle.size for handle in handles)
        assert agent.copy("copy_out", pieces, fds) == (len(pieces), total)
        agent.stage(fds)
        assert (agent.status().phase, agent.status().flags & STAGED) == (QUIESCED, STAGED)
        assert agent.count("hand_over") == (4, total)
        agent.ask("freeze")
        agent.ask("thaw")
        assert agent.create([handle.id for handle in handles]) == (4, total)
        assert agent.copy("copy_in", pieces, fds) == (len(pieces), total)
        agent.count("map")
        agent.ask("resume")
        agent.ask("drop")
        for fd in fds:
            os.close(fd)
        puppet.must("check a 1", "check b 2")
        assert puppet.script(["getaccess v 0 0", "getaccess v 0x400000 0"]) == ["ok 3", "ok 1"]
    assert int(puppet.tell("descriptors")) == before
    puppet.must("unmap v 0 0x800000", "release h", "release lone", "free a", "free b")


def test_the_bytes_are_where_the_table_says(closed):
    puppet, agent = closed
    puppet.must("alloc a 0x200000", "fill a 7 s", "sync")
    (handle,) = agent.export()
    agent.quiesce()
    fd = segment(4 * MiB)
    agent.copy("copy_out", [(handle.id, 1 * MiB, 4096 + 8, 64, 0)], [fd])
    whole = segment(2 * MiB)
    agent.copy("copy_out", [(handle.id, 0, 0, 2 * MiB, 0)], [whole])
    found = os.pread(fd, 4 * MiB, 0)
    assert found[: 4096 + 8] == bytes(4096 + 8)
    assert found[4096 + 8 : 4096 + 72] == os.pread(whole, 64, 1 * MiB) != os.pread(whole, 64, 0)
    assert not any(found[4096 + 72 :])
    agent.ask("resume")
    os.close(fd)
    os.close(whole)


def test_memory_that_was_made_anew_can_be_exported_again(target):
    """Memory that came back by import cannot: the process that exported it keeps it."""
    puppet, agent = target
    puppet.must("alloc a 0x200000", "fill a 3", "sync")
    agent.take()
    agent.bring_back()
    (handle,) = agent.export()
    assert handle.kept
    agent.quiesce()
    fd = segment(2 * MiB)
    agent.copy("copy_out", [(handle.id, 0, 0, 2 * MiB, 0)], [fd])
    agent.count("hand_over")
    agent.custody.drop()
    agent.create([handle.id])
    agent.copy("copy_in", [(handle.id, 0, 0, 2 * MiB, 0)], [fd])
    agent.count("map")
    agent.ask("resume")
    puppet.must("check a 3")
    assert [handle.kept for handle in agent.export()] == [False]
    assert len(agent.custody.held) == 1
    agent.undo_prepare()
    os.close(fd)


def test_each_is_legal_in_one_phase_only(closed):
    puppet, agent = closed
    puppet.must("alloc a 0x200000")
    fd = segment(2 * MiB)
    copy = COPY.pack(7, 1, COPY_RECORD.size, 100, 0) + COPY_RECORD.pack(1, 0, 0, 4096, 0, 0)
    ids = ID_LIST.pack(7, 0, 0)
    bodies = {"copy_out": (copy, [fd]), "copy_in": (copy, [fd]), "create": (ids, [])}

    def all_refused(*kinds):
        for kind in kinds:
            assert refused(agent.ask, kind, *bodies[kind]) == WRONG_PHASE, kind

    all_refused("copy_out", "copy_in", "create")
    agent.export()
    all_refused("copy_out", "copy_in", "create")
    agent.quiesce()
    all_refused("copy_in", "create")
    agent.count("hand_over")
    all_refused("copy_out")
    agent.ask("freeze")
    all_refused("copy_out", "copy_in", "create")
    agent.ask("thaw")
    agent.create([])
    agent.ask("discard")
    os.close(fd)


def test_what_does_not_fit_is_refused_and_nothing_is_touched(closed, tmp_path):
    puppet, agent = closed
    puppet.must("alloc a 0x200000", "fill a 5 s", "sync")
    (handle,) = agent.export()
    agent.quiesce()
    good, small, unsealed = segment(2 * MiB), segment(4096), segment(2 * MiB, seals=0)
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 2 * MiB)
    before = puppet.tell("descriptors")

    def code(piece, *fds):
        return refused(agent.copy, "copy_out", [piece], fds)

    assert code((handle.id, 0, 0, 4097, 0), small) == BAD_FRAME
    assert code((handle.id, 0, 4096, 1, 0), small) == BAD_FRAME
    assert code((handle.id, 0, 2**64 - 4096, 8192, 0), good) == BAD_FRAME
    assert code((handle.id, 0, 0, 4096, 0), unsealed) == BAD_FRAME
    assert code((handle.id, 0, 0, 4096, 0), file) == BAD_FRAME
    assert code((handle.id, 0, 0, 0, 0), good) == BAD_FRAME
    assert code((handle.id, 0, 0, 4096, 1), good) == BAD_FRAME
    assert code((handle.id, 2 * MiB, 0, 4096, 0), good) == UNKNOWN
    assert code((handle.id, 2**64 - 4096, 0, 8192, 0), good) == UNKNOWN
    assert code((handle.id + 1, 0, 0, 4096, 0), good) == UNKNOWN
    assert code((12345, 0, 0, 4096, 0), good) == UNKNOWN
    assert code((handle.id, 0, 0, 4096, 0)) == BAD_FRAME  # by when what came with the last one is closed
    assert puppet.tell("descriptors") == before
    assert agent.status().phase == QUIESCED
    agent.ask("resume")
    puppet.must("check a 5")
    for fd in (good, small, unsealed, file):
        os.close(fd)


def test_no_descriptor_left_for_a_segment(closed):
    puppet, agent = closed
    puppet.must("limit 64", "alloc a 0x200000", "fill a 5 s", "sync", "eat 1")
    (handle,) = agent.export()
    agent.quiesce()
    fds = [segment(2 * MiB) for _ in range(4)]
    assert refused(agent.copy, "copy_out", [(handle.id, 0, 0, 4096, 0)], fds) == NO_DESCRIPTORS
    agent.ask("resume")
    puppet.must("check a 5")
    for fd in fds:
        os.close(fd)


def test_only_what_is_awaited_is_made_anew(closed):
    puppet, agent = closed
    puppet.must("allocmany a 3 0x200000", "fill a0 5 s", "sync")
    handles = agent.export()
    agent.quiesce()
    agent.count("hand_over")
    ids = [handle.id for handle in handles]
    assert refused(agent.create, [*ids, ids[0]]) == UNKNOWN
    assert refused(agent.create, [*ids, 12345]) == UNKNOWN
    assert refused(agent.create, [ids[0], ids[2] + 1]) == UNKNOWN
    agent.create(ids[:1])
    assert refused(agent.create, ids[:1]) == UNKNOWN
    assert agent.count("discard") == (1, 2 * MiB)
    assert agent.create(ids) == (3, 6 * MiB)
    agent.count("map")
    agent.ask("resume")
    puppet.must("freemany a 0 3")


def test_without_room_nothing_is_made(machine):
    machine.memory = 256 * MiB
    machine.settings["GCR_SIM_QUIRKS"] = "noexport"
    puppet, agent = machine.target()
    puppet.must("allocmany a 40 0x400000")
    handles = agent.export()
    agent.quiesce()
    agent.count("hand_over")
    other = machine.ready(socket=False)
    other.must("alloc most 0x8000000")
    ids = [handle.id for handle in handles]
    assert refused(agent.create, ids) == NO_ROOM
    assert agent.status().phase == HANDED_OVER
    other.must("alloc more 0x4000000", "free more", "free most")
    assert agent.create(ids) == (40, 160 * MiB)
    agent.count("map")
    agent.ask("resume")


MALFORMED = {
    "short head": COPY.pack(7, 1, COPY_RECORD.size, 1, 0)[:-1],
    "no records": COPY.pack(7, 1, COPY_RECORD.size, 1, 0),
    "too many": COPY.pack(7, 0xFFFFFFFF, COPY_RECORD.size, 1, 0) + bytes(80),
    "short records": COPY.pack(7, 1, 8, 1, 0) + bytes(8),
    "size that wraps": COPY.pack(7, 0x10000000, 0x10000000, 1, 0) + bytes(40),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_copy_closes_the_connection_and_nothing_else(machine, name):
    machine.settings["GCR_SIM_QUIRKS"] = "noexport"
    puppet, agent = machine.target()
    puppet.must("alloc a 0x200000", "fill a 1", "sync")
    agent.export()
    agent.quiesce()
    before = int(puppet.tell("descriptors"))
    fd = segment(2 * MiB)
    agent.send("copy_out", MALFORMED[name], [fd])
    again = machine.daemon.accept()
    assert again.hello.phase == RUNNING
    assert wait_for(lambda: int(puppet.tell("descriptors")) == before)  # once it has looked at what the welcome brought
    puppet.must("check a 1", "free a")
    os.close(fd)


def test_longer_records_of_a_newer_daemon_are_skipped_over(closed):
    puppet, agent = closed
    puppet.must("alloc a 0x200000")
    (handle,) = agent.export()
    agent.quiesce()
    fd = segment(2 * MiB)
    rows = b"".join(COPY_RECORD.pack(handle.id, i * 4096, 0, 4096, 0, 0) + b"newer..." for i in range(2))
    payload, _ = agent.ask("copy_out", COPY.pack(7, 2, COPY_RECORD.size + 8, 1000, 0) + rows, [fd])
    assert struct.unpack("<QQQ", payload) == (7, 2, 8192)
    agent.ask("resume")
    os.close(fd)


def test_the_time_is_up_after_the_first_piece(closed):
    puppet, agent = closed
    puppet.must("alloc a 0x400000")
    (handle,) = agent.export()
    agent.quiesce()
    fd = segment(4 * MiB)
    rows = b"".join(COPY_RECORD.pack(handle.id, i * MiB, i * MiB, MiB, 0, 0) for i in range(4))
    payload, _ = agent.ask("copy_out", COPY.pack(7, 4, COPY_RECORD.size, 0, 0) + rows, [fd])
    assert struct.unpack("<QQQ", payload) == (7, 1, MiB)
    agent.ask("resume")
    os.close(fd)
