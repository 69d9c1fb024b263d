"""Memory that processes share: a ticket is no reference of the driver's; all holders hand over, and have it back."""

import os

import pytest
from conftest import SANITIZE
from packets import ID_LIST, Refused
from patience import wait_for
from sharing_swap import swap
from test_dumped import USED, Control

SIZE = 0x400000
FILE, ANY = 1, 0
WINDOW = (f"map w 0 {SIZE:#x} h", f"access w 0 {SIZE:#x} 0 3")
SHAREABLE_EXPORT = 8
BARE = pytest.mark.skipif(SANITIZE != "", reason="a sanitized program is linked against the shim")


def used(machine):
    return int(Control(machine.folder).run(USED, GCR_SIM_STATE=str(machine.folder / "sim"))[0])


def owner_of(machine):
    """A process with memory `w`, and a ticket `f` for it."""
    puppet, agent = machine.target()
    puppet.must(f"create h {SIZE:#x} {FILE}", f"reserve w {SIZE:#x}", *WINDOW, f"export f h {FILE}", "fill w 1", "sync")
    return puppet, agent


def hand_on(owner, importer, file="f"):
    importer.must(f"fetch {file} {owner.process.pid} {owner.tell(f'numberof {file}')}")


def importer_of(machine, owner):
    puppet, agent = machine.target()
    hand_on(owner, puppet)
    puppet.must("import h f", "close f", f"reserve w {SIZE:#x}", *WINDOW)
    return puppet, agent


@pytest.fixture
def pair(machine):
    owner, its_agent = owner_of(machine)
    importer, importers_agent = importer_of(machine, owner)
    return owner, its_agent, importer, importers_agent


def test_both_sides_are_listed_and_the_bytes_belong_to_the_owner(pair):
    owner, its_agent, importer, importers_agent = pair
    name, (lent,) = its_agent.shared()
    importers_name, (foreign,) = importers_agent.shared()
    assert name != importers_name != 0
    assert (lent.process, lent.size, lent.pid, lent.foreign) == (importers_name, SIZE, importer.process.pid, False)
    assert (foreign.process, foreign.there, foreign.size) == (name, lent.id, SIZE)
    assert (foreign.foreign, foreign.devices) == (True, 1)
    assert [(agent.status().handles, agent.status().covered_bytes) for agent in (its_agent, importers_agent)] == [
        (1, SIZE),
        (0, 0),
    ]
    assert importers_agent.export() == []
    assert importers_agent.mappings() == []
    assert importers_agent.status().uncovered == {}
    importer.must("check w 1", "fill w 2", "sync")
    owner.must("check w 2")


def test_shared_memory_goes_and_comes_back_for_both(pair):
    owner, its_agent, importer, importers_agent = pair
    for seed in range(2, 8, 2):
        swap(its_agent, importers_agent)
        importer.must(f"check w {seed - 1}", f"fill w {seed}", "sync")
        owner.must(f"check w {seed}", f"fill w {seed + 1}", "sync")
    assert its_agent.status().generation == importers_agent.status().generation == 3


def test_nothing_is_left_on_the_device_once_it_was_handed_over(machine):
    owner, its_agent = owner_of(machine)
    before = used(machine)
    _importer, importers_agent = importer_of(machine, owner)
    context = used(machine) - before
    for agent in (its_agent, importers_agent):
        agent.take()
    its_agent.custody.drop()
    assert used(machine) == before + context - SIZE


def test_the_program_has_no_reference_that_survives_the_hand_over(machine):
    """The ticket in its hands is none, be it as it may: kept, duplicated, or in a socket's queue."""
    owner, agent = owner_of(machine)
    before = used(machine)
    agent.take()
    agent.custody.drop()
    assert used(machine) == before - SIZE
    assert owner.tell("close f") == "ok"


def test_the_same_memory_is_the_same_handle(pair, machine):
    owner, its_agent, importer, importers_agent = pair
    hand_on(owner, importer)
    importer.must("import again f", "release again", "release h", "import h f", "release h")
    owner.must("import own f", "release own")
    assert len(importers_agent.shared()[1]) == len(its_agent.shared()[1]) == 1
    assert importer.tell("ids") == owner.tell("ids") == "2"
    importer.must("check w 1", f"unmap w 0 {SIZE:#x}")
    assert wait_for(lambda: its_agent.shared()[1] == [])
    assert importers_agent.shared()[1] == []
    importer.must("import h f", *WINDOW, "check w 1")  # still good


def test_what_is_imported_cannot_be_exported(pair):
    _, _, importer, _ = pair
    assert importer.tell(f"export g h {FILE}") == "1"


def end(process, way):
    if way == "exec":
        process.stdin.write("become /bin/sleep 60\n")
        process.stdin.flush()
        return
    process.kill()
    if way == "dead":
        process.wait()  # else its end has not been heard of yet


@pytest.mark.parametrize("last", ["importer", "owner", "dead", "zombie", "exec"])
def test_memory_lives_until_its_last_holder_lets_go(machine, last):
    owner, its_agent = owner_of(machine)
    alone = used(machine)
    importer, _ = importer_of(machine, owner)
    both = used(machine)
    gone = (f"unmap w 0 {SIZE:#x}", "release h")
    (importer if last == "owner" else owner).must(*gone)
    assert used(machine) == both
    if last == "importer":
        assert len(its_agent.export()) == len(its_agent.shared()[1]) == 1  # the owner hands its bytes over still
        its_agent.undo_prepare()
    if last in ("importer", "owner"):
        (owner if last == "owner" else importer).must("check w 1", *gone)
    else:
        end(importer.process, last)
    left = (both if last in ("importer", "owner") else alone) - SIZE
    assert wait_for(lambda: used(machine) == left)
    assert wait_for(lambda: its_agent.shared()[1] == [])


def test_a_ticket_of_what_was_freed_is_void(machine):
    owner, _ = owner_of(machine)
    importer, _ = machine.target()
    hand_on(owner, importer)
    owner.must(f"unmap w 0 {SIZE:#x}", "release h")
    assert importer.tell("import h f") == "1"
    owner.must("close f")


def test_what_came_back_is_lent_again(pair, machine):
    """r580 exports no imported memory a second time: the descriptor is the daemon's."""
    owner, its_agent, _, importers_agent = pair
    swap(its_agent, importers_agent)
    owner.must(f"export again h {FILE}")
    third, its = machine.target()
    hand_on(owner, third, "again")
    third.must("import h again", f"reserve w {SIZE:#x}", *WINDOW, "check w 1")
    assert len(its_agent.shared(limit=1)[1]) == 2  # in pages of one
    assert len(its.shared()[1]) == 1
    assert its_agent.questions.described


@BARE
def test_an_importer_without_gcr_is_refused_by_the_driver(machine):
    owner, _ = owner_of(machine)
    bare = machine.ready(preload=False)
    hand_on(owner, bare)
    assert bare.tell("import h f") != "ok"


@BARE
def test_an_importer_gets_the_drivers_own_where_that_is_wished(machine):
    machine.settings["GCR_SHARE"] = "driver"
    owner, agent = owner_of(machine)
    bare = machine.ready(preload=False)
    hand_on(owner, bare)
    bare.must("import h f", f"reserve w {SIZE:#x}", *WINDOW, "check w 1")
    assert agent.status().uncovered == {SHAREABLE_EXPORT: (True, SIZE, 1)}


def test_memory_that_others_hold_is_not_made_anew(pair):
    _, its_agent, _, importers_agent = pair
    swap(its_agent, importers_agent)
    ((handle,), _, _) = its_agent.export_batch()
    its_agent.quiesce()
    with pytest.raises(Refused, match="other processes hold"):
        its_agent.ask("rehome", ids_of(its_agent, handle.id))
    its_agent.ask("resume")


def ids_of(agent, *ids):
    return ID_LIST.pack(agent.transaction, len(ids), 0) + b"".join(each.to_bytes(8, "little") for each in ids)


def test_what_a_driver_gives_is_a_file_that_cannot_be_changed(machine):
    owner, _ = owner_of(machine)
    path = f"/proc/{owner.process.pid}/fd/{owner.tell('numberof f')}"
    fd = os.open(path, os.O_RDWR)
    before = os.pread(fd, 100, 0)
    for change in (lambda: os.pwrite(fd, b"x", 8), lambda: os.ftruncate(fd, 8), lambda: os.pwrite(fd, b"x", 56)):
        with pytest.raises(PermissionError):
            change()
    assert (os.pread(fd, 100, 0), len(before)) == (before, 56)
    os.close(fd)
