"""Memory that one process lends to another by the legacy interprocess calls: as bare, and refused meanwhile."""

import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from machine import Machine, Victim, alive, kill, until
from refusals import refused, untouched
from worlds import AMD, NVIDIA, ON_DEVICE, at, here

MIB = 1 << 20
SMALL, LARGE = 5000, 8 * MIB
LATER = 0.002  # seconds: now and then the borrower is the first
BLOB = struct.Struct("<6QII")  # core/lending.h: magic, process, two words of secret, address, allocation, vendor, ...
VISIT = struct.Struct("<QII")  # after the blob: the visitor's name, its errand, ...
BORROW = 1
LENDERS = [world for world in (NVIDIA, AMD) if world in here()]
BOTH = pytest.mark.parametrize("machine", [at(world) for world in LENDERS], indirect=True)


def dialogue(lender: Victim, borrower: Victim) -> list[str]:
    """Returns the answers of both; none depends on addresses."""
    said: list[str] = []

    def ask(who: Victim, line: str) -> str:
        said.append(who.ask(line))
        return said[-1]

    for size, inside in ((SMALL, 0), (LARGE, 0), (3 * MIB + 17, 4096)):
        blob = lender.ask(f"lend {size} {inside}")
        again = lender.ask("lend_again")
        for line in (f"borrow {blob}", f"borrow {again}", "write 0 77", "give_back 0", "free_borrowed 0", "look 0"):
            ask(borrower, line)
        ask(lender, "wrote 77")
        ask(lender, f"borrow {blob}")  # one's own
        for line in (f"borrow {blob} 2", "give_back 0", "give_back 0", f"borrow {blob}", "give_back 0", "forget"):
            ask(borrower, line)
    two = [lender.ask(f"lend {SMALL}") for _ in range(2)]  # they share physical memory
    for line in (*(f"borrow {blob}" for blob in two), "write 1 5", "look 0", "give_back 0", "look 1", "give_back 1"):
        ask(borrower, line)
    ask(lender, "wrote 5")
    ask(lender, "?")
    return said


@BOTH
def test_two_jobs_say_what_two_bare_programs_say(machine: Machine) -> None:
    bare = dialogue(machine.stranger(), machine.stranger())
    assert sum("True" in line for line in bare) == 16
    assert dialogue(machine.told("lender"), machine.told("borrower")) == bare


@BOTH
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_refused_while_another_job_has_it_and_not_after(machine: Machine, size: int) -> None:
    """Small ones share their memory with others, which stays when they are freed."""
    lender, borrower = machine.told("lender", f"alloc 1 {SMALL}"), machine.told("borrower")
    blob = lender.ask(f"lend {size}")
    assert swapped(machine, lender)  # no process has opened it yet
    assert borrower.ask(f"borrow {blob}").startswith("0: True")
    for job, other in ((lender, borrower), (borrower, lender)):
        with untouched(machine, job):
            answer = machine.gcr("checkpoint", job.name, *machine.where.options)
            assert f"of job {other.name}" in refused(answer, "unsupported_state")
    assert borrower.ask("give_back 0") == "code 0"
    assert lender.ask("drop_newest") == "ok"
    for job in (lender, borrower):
        until(lambda job=job: swapped(machine, job) or None, 10, "the loan is over")


def swapped(machine: Machine, job: Victim) -> bool:
    """Tells whether the job left its device and came back as it was."""
    before = job.ask()
    if machine.gcr("checkpoint", job.name, *machine.where.options).code:
        return False
    assert machine.gcr("restore", job.name).code == 0
    assert job.ask() == before
    return True


@BOTH
def test_what_came_back_by_a_restore_can_be_lent(machine: Machine) -> None:
    """The driver makes no descriptor of it a second time; the supervisor has one."""
    lender, borrower = machine.told("lender", f"alloc 1 {LARGE}"), machine.told("borrower")
    assert machine.gcr("checkpoint", "lender", *machine.where.options).code == 0
    assert machine.gcr("restore", "lender").code == 0
    assert borrower.ask(f"borrow {lender.ask('lend_again')}").startswith(f"0: True {LARGE} bytes")
    assert borrower.ask("write 0 9") == "ok"
    assert "wrong" not in lender.ask("wrote 9")
    assert borrower.ask("give_back 0") == "code 0"


@BOTH
def test_what_cannot_be_opened(machine: Machine) -> None:
    lender, borrower = machine.told("lender"), machine.told("borrower")
    blob = lender.ask(f"lend {LARGE}")
    before = borrower.ask()
    values = BLOB.unpack_from(bytes.fromhex(blob[1:]))
    for field in range(1, 6):  # owner, secret, place, number
        wrong = [value ^ (field == index) for index, value in enumerate(values)]
        assert borrower.ask(f"borrow x{BLOB.pack(*wrong).hex():0<128}") == "code 1"
    assert lender.ask("drop_newest") == "ok"
    assert borrower.ask(f"borrow {blob}") == "code 1"
    blob = lender.ask(f"lend {LARGE}")
    machine.end(lender)
    assert borrower.ask(f"borrow {blob}") == "code 1"
    assert borrower.ask() == before
    assert machine.gcr("checkpoint", "borrower", *machine.where.options).code == 0


def test_a_forked_child_does_not_stand_in_for_its_parent(machine: Machine) -> None:
    lender, borrower = machine.told("lender"), machine.told("borrower")
    blob = lender.ask(f"lend {LARGE}")
    child = int(lender.ask("child none"))
    assert borrower.ask(f"borrow {blob}").startswith("0: True")
    assert borrower.ask("give_back 0") == "code 0"
    kill(machine.target("lender"))
    assert alive(child)
    began = time.monotonic()
    assert borrower.ask(f"borrow {blob}") == "code 1"
    assert time.monotonic() - began < 5  # no process was waited for
    os.kill(child, signal.SIGKILL)


def test_freed_while_it_is_asked_for(machine: Machine) -> None:
    """The borrower sees all of it or a refusal; memory that the lender frees is free."""
    machine.extra["GCR_PREPARE_ARENA"] = "no"  # and no worker's context comes to the device meanwhile
    lender, borrower = machine.told("lender"), machine.told("borrower")
    free, opened = lender.ask("free_bytes"), 0
    for turn in range(60):
        blob = lender.ask(f"lend {SMALL if turn % 2 else 2 * MIB}")
        asking = threading.Timer(turn % 4 * LATER, lambda: lender.ask("drop_newest"))
        asking.start()
        said = borrower.ask(f"borrow {blob}")
        asking.join()
        assert re.fullmatch(r"code 1|0: True \d+ bytes [0-9a-f]{64}", said), said
        if said != "code 1":
            opened += 1
            assert borrower.ask("give_back 0") == "code 0"
            assert borrower.ask("forget") == "ok"
    assert opened
    if not ON_DEVICE:  # which other tests use meanwhile
        assert lender.ask("free_bytes") == free


@BOTH
def test_signals_do_not_come_between(machine: Machine) -> None:
    """A program under a sampling profiler has such signals."""
    lender, borrower = machine.told("lender"), machine.told("borrower")
    blob = lender.ask(f"lend {SMALL}")
    assert borrower.ask("shake") == "ok"
    for _ in range(40):
        assert borrower.ask(f"borrow {blob}").startswith("0: True")
        assert borrower.ask("give_back 0") == "code 0"
        assert borrower.ask("forget") == "ok"


def test_the_lenders_descriptors_are_closed(machine: Machine) -> None:
    """A program closes all descriptors, and puts others in their place: a later borrower is still served."""
    lender, borrower = machine.told("lender"), machine.told("borrower")
    blob = lender.ask(f"lend {LARGE}")
    assert int(lender.ask("close_all")) == 2
    deadline = time.monotonic() + 10
    while not (said := borrower.ask(f"borrow {blob}")).startswith("0: True"):
        assert said == "code 1"
        assert time.monotonic() < deadline
        time.sleep(0.1)


Answer = TypeVar("Answer")


# ---- strangers at a lender's socket --------------------------------------------------------------------------------


def visit(blob: bytes, act: Callable[[socket.socket], Answer]) -> Answer:
    (process,) = struct.unpack_from("<Q", blob, 8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.settimeout(5)
        caller.connect(f"\0gcr-lend-{process:016x}")
        return act(caller)


def test_a_stranger_at_the_door(machine: Machine) -> None:
    """Without the secret there is no descriptor; a silent visitor keeps no borrower waiting for long."""
    lender, borrower = machine.told("lender"), machine.told("borrower")
    blob = bytes.fromhex(lender.ask(f"lend {LARGE}")[1:])
    fields = BLOB.unpack_from(blob)

    def ask(caller: socket.socket, *secret: int) -> list[int]:
        caller.send(BLOB.pack(*fields[:2], *secret, *fields[4:]) + VISIT.pack(1, BORROW, 0))
        _answer, descriptors, _flags, _address = socket.recv_fds(caller, 512, 4)
        return descriptors

    assert visit(blob, lambda caller: ask(caller, 0, 0)) == []
    (given,) = visit(blob, lambda caller: ask(caller, *fields[2:4]))
    os.close(given)
    for size in (1, 71, 73, 4000):
        assert visit(blob, lambda caller, size=size: caller.send(os.urandom(size)) and caller.recv(512)) == b""
    (process,) = struct.unpack_from("<Q", blob, 8)
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)]
    for each in silent:
        each.connect(f"\0gcr-lend-{process:016x}")
    assert borrower.ask(f"borrow x{blob.hex()}").startswith("0: True")
    for each in silent:
        each.close()
