"""Interprocess events of the simulated CUDA driver, held against what an H100 answered (driver 580.159)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from simulated import Machine, Program

from gcr.testing.machine import until

DONE, PENDING, NO_VALUE, NO_CONTEXT, NO_MAPPING, NO_HANDLE = "0", "600", "1", "201", "205", "400"

# Answers lines: an act, and the name of an event.
PEER = """
    use()
    flag, events, blocks = ck(cu.cuMemAlloc(4)), {}, 0
    ck(cu.cuMemsetD32(flag, 0, 1))
    stream, side = ck(cu.cuStreamCreate(1)), ck(cu.cuStreamCreate(1))
    say('up')
    while True:
        act, name, *more = wait_for_line().split()
        if act == 'make': ret, events[name] = cu.cuEventCreate(int(more[0]) if more else 6); say(int(ret))
        if act == 'handle':
            ret, handle = cu.cuIpcGetEventHandle(events[name])
            say(int(ret) if int(ret) else ctypes.string_at(handle.getPtr(), 64).hex())
        if act == 'open':
            handle = cu.CUipcEventHandle(); ctypes.memmove(handle.getPtr(), bytes.fromhex(more[0]), 64)
            ret, event = cu.cuIpcOpenEventHandle(handle)
            if not int(ret): events[name] = event
            say(int(ret))
        if act == 'block': blocks += 1; say(code(cu.cuStreamWaitValue32(stream, flag, blocks, 0)))
        if act == 'go': say(code(cu.cuStreamWriteValue32(side, flag, blocks, 0)))
        if act == 'record': say(code(cu.cuEventRecord(events[name], stream)))
        if act == 'query': say(code(cu.cuEventQuery(events[name])))
        if act == 'wait': say(code(cu.cuStreamWaitEvent(stream, events[name], 0)))
        if act == 'idle': say(code(cu.cuStreamQuery(stream)))
        if act == 'sync': say(code(cu.cuStreamSynchronize(stream)))
        if act == 'await': say(code(cu.cuEventSynchronize(events[name])))
        if act == 'destroy': say(code(cu.cuEventDestroy(events.pop(name))))
"""
CONTROL = """
    ck(cu.cuInit(0))
    say(*[code(getattr(cu, 'cuCheckpointProcess' + what)(pid, None)) for what in {acts} for pid in {pids}])
"""
OUT, BACK = ("Lock", "Checkpoint"), ("Restore", "Unlock")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@contextmanager
def peers(machine: Machine) -> Iterator[tuple[Program, Program]]:
    with machine.start(PEER) as maker, machine.start(PEER) as other:
        assert (maker.hear(), other.hear()) == ("up", "up")
        yield maker, other


def shared(maker: Program, other: Program, name: str = "x") -> str:
    """Makes an event, and opens it in the other process. Returns the handle."""
    assert maker.ask(f"make {name}") == DONE
    handle = maker.ask(f"handle {name}")
    assert other.ask(f"open {name} {handle}") == DONE
    return handle


def blocked(who: Program, *events: str) -> None:
    """Records events behind work that goes on until `go`."""
    assert who.ask("block -") == DONE
    for event in events:
        assert who.ask(f"record {event}") == DONE


def works(one: Program, other: Program, name: str = "x", theirs: str = "") -> None:
    """A record behind work of one process holds the stream of the other, and both go on with it."""
    theirs = theirs or name
    blocked(one, name)
    assert other.ask(f"query {theirs}") == PENDING
    assert other.ask(f"wait {theirs}") == DONE
    assert other.ask("idle -") == PENDING
    assert one.ask("go -") == DONE
    assert other.ask("sync -") == DONE
    assert other.ask(f"query {theirs}") == DONE


def control(machine: Machine, acts: tuple[str, ...], *who: Program) -> None:
    said = machine.run(CONTROL.format(acts=acts, pids=[each.pid for each in who]))
    assert set(said[0].split()) == {"0"}, said


def test_a_record_is_seen_by_both_whoever_makes_it(machine: Machine) -> None:
    with peers(machine) as (maker, other):
        handle = shared(maker, other)
        assert other.ask("query x") == DONE  # never recorded
        works(maker, other)
        works(other, maker)
        assert maker.ask("handle x") == handle
        assert other.ask(f"open again {handle}") == DONE
        works(maker, other, "x", "again")
        assert other.ask("destroy x") == DONE
        works(maker, other, "x", "again")


def test_a_wait_is_for_the_newest_record_at_the_time_of_the_call(machine: Machine) -> None:
    with peers(machine) as (maker, other):
        shared(maker, other)
        blocked(maker, "x")
        assert other.ask("wait x") == DONE
        assert maker.ask("go -") == DONE
        assert maker.ask("sync -") == DONE
        blocked(maker, "x")
        assert other.ask("sync -") == DONE
        other.tell("await x")
        assert other.quiet(0.1)
        assert maker.ask("go -") == DONE
        assert other.hear() == DONE


def test_errors(machine: Machine) -> None:
    with peers(machine) as (maker, other):
        assert maker.ask("make timed 4") == NO_VALUE
        assert maker.ask("make plain 2") == DONE
        assert maker.ask("handle plain") == NO_HANDLE
        handle = shared(maker, other)
        assert other.ask("handle x") == NO_HANDLE
        assert maker.ask(f"open own {handle}") == NO_CONTEXT
        assert other.ask(f"open none {'00' * 64}") == NO_MAPPING
        assert other.ask(f"open none {'ff' * 64}") == NO_MAPPING


def test_both_live_through_a_checkpoint(machine: Machine) -> None:
    """What was opened, a handle that was asked for, and new ones."""
    with peers(machine) as (maker, other):
        handle = shared(maker, other)
        assert maker.ask("make asked") == DONE
        asked = maker.ask("handle asked")
        for turn in range(2):
            control(machine, (*OUT, *BACK), maker, other)
            works(maker, other)
            works(other, maker)
            assert maker.ask("handle x") == handle
            assert other.ask(f"open asked {asked}") == DONE
            works(maker, other, "asked")
            assert other.ask("destroy asked") == DONE
            shared(maker, other, f"new{turn}")
            works(maker, other, f"new{turn}")


@pytest.mark.parametrize("first", [True, False], ids=["maker", "other"])
def test_so_does_either_alone_and_the_other_records_meanwhile(machine: Machine, first: bool) -> None:
    with peers(machine) as pair:
        shared(*pair)
        gone, stays = pair if first else pair[::-1]
        control(machine, OUT, gone)
        blocked(stays, "x")
        assert stays.ask("query x") == PENDING
        control(machine, BACK, gone)
        assert gone.ask("query x") == PENDING
        assert gone.ask("wait x") == DONE
        assert stays.ask("go -") == DONE
        assert gone.ask("sync -") == DONE
        works(*pair)


def test_nothing_waits_for_a_record_that_ended_with_its_process(machine: Machine) -> None:
    """On a device it would for ever. The event goes on with records of the other process."""
    with peers(machine) as (maker, other):
        shared(maker, other)
        blocked(maker, "x")
        assert other.ask("wait x") == DONE
        assert other.ask("query x") == PENDING
        maker.kill()
        until(lambda: other.ask("query x") == DONE, 20, "the record is given up")
        assert other.ask("sync -") == DONE
        assert other.ask("record x") == DONE
        assert other.ask("await x") == DONE


def test_an_event_that_its_maker_has_destroyed(machine: Machine) -> None:
    with peers(machine) as (maker, other):
        shared(maker, other)
        blocked(maker, "x")
        assert maker.ask("destroy x") == DONE
        assert other.ask("query x") == PENDING
        assert maker.ask("go -") == DONE
        assert other.ask("await x") == DONE
