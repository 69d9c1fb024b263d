"""A job whose data alone was suspended: its memory may stay on the device, and its context leaves later, or never."""

import os
import signal

import pytest
from machine import Machine, kill, until
from test_deaths import OURS, Who, strike
from test_late import kill_daemon
from test_resident import CONTEXT, MIB, come_back, resident

STEPS = ("locked", "frozen", "decided", "committed_one")


def suspend(machine: Machine, *, stays: bool) -> int:
    """Suspends the data of a job, whose context stays. Returns its bytes."""
    gone = machine.ask("checkpoint", "llm", data_only=True, resident=stays)
    assert (gone.code, gone.body.get("state"), gone.body["control_s"]) == (0, "data_suspended", None), gone.body
    size = int(gone.body["bytes"])
    assert size > 0
    assert (gone.body["resident_bytes"], gone.body["vram_free_s"] is None) == (size * stays, stays)
    return size


def test_the_memory_stays_and_comes_back_without_a_copy(machine: Machine) -> None:
    job = machine.told("llm", "alloc 6 3000000", "mixed 10 1000 2000000")
    before, used = job.ask(), machine.used()
    for _ in range(2):
        size = suspend(machine, stays=True)
        assert resident(machine) == size
        assert machine.used() <= used + CONTEXT, "a worker's context is all that came"
        back = machine.ask("restore", "llm")
        assert (back.body["resident_bytes"], back.body["bytes"]) == (size, size), back.body
        assert back.body["control_s"] is None
        assert job.ask() == before
    assert resident(machine) == 0


def test_the_memory_alone_is_freed(machine: Machine) -> None:
    job, before = machine.start()
    size, used = suspend(machine, stays=True), machine.used()
    freed = machine.gcr("checkpoint", "llm", "--data-only")
    assert (freed.code, freed.body["state"]) == (0, "data_suspended"), freed.body
    assert freed.body["vram_after_bytes"] == CONTEXT
    assert (resident(machine), used - machine.used()) == (0, size)
    assert come_back(machine) == 0
    assert job.ask() == before


@pytest.mark.parametrize("stays", [False, True])
def test_the_context_leaves_later(machine: Machine, stays: bool) -> None:
    job, before = machine.start()
    for _ in range(2):
        size, used = suspend(machine, stays=stays), machine.used()
        gone = machine.gcr("checkpoint", "llm")
        assert (gone.code, gone.body["state"], gone.body["bytes"]) == (0, "suspended", size), gone.body
        assert (gone.body["vram_after_bytes"], gone.body["resident_bytes"]) == (0, 0), gone.body
        assert gone.body["control_s"] > 0 and gone.body["vram_free_s"] > 0
        assert used - machine.used() == size * stays + CONTEXT
        assert machine.ask("checkpoint", "llm").body["error"]["code"] == "wrong_state"
        assert come_back(machine) == 0
        assert job.ask() == before


def test_the_context_may_leave_later_where_the_driver_saves_it(machine: Machine) -> None:
    job, before = machine.start()
    gone = machine.ask("checkpoint", "llm", context_later=True)
    assert (gone.code, gone.body["state"], gone.body["control_s"]) == (0, "data_suspended", None), gone.body
    left = machine.ask("checkpoint", "llm")
    assert (left.body["state"], left.body["vram_after_bytes"]) == ("suspended", 0), left.body
    assert come_back(machine) == 0
    assert job.ask() == before


def suspend_for_a_while(machine: Machine, name: str = "llm") -> int:
    """Suspends a job, whose memory and context stay until another program wants the room. Returns its bytes."""
    gone = machine.ask("checkpoint", name, context_later=True, resident=True)
    assert (gone.code, gone.body.get("state")) == (0, "data_suspended"), gone.body
    assert gone.body["resident_bytes"] == gone.body["bytes"] > 0
    return int(gone.body["bytes"])


def left(machine: Machine, name: str = "llm") -> bool:
    job = machine.job(name)
    return bool(job) and (job["state"], resident(machine, name)) == ("suspended", 0)


def test_a_job_that_begins_finds_the_device_free_of_context_and_memory(machine: Machine) -> None:
    job, before = machine.start()
    for daemon_dies in (False, False, True):
        suspend_for_a_while(machine)
        if daemon_dies:
            kill_daemon(machine)
            assert machine.until_state("llm", "data_suspended", patience=20) == "data_suspended"
        other = machine.told("other")
        assert left(machine)
        machine.end(other)
        assert machine.used() <= CONTEXT, "of the worker"
        assert come_back(machine) == 0
        assert job.ask() == before


def test_a_program_that_allocates_gets_the_room_of_the_context_too(machine: Machine) -> None:
    job, other = machine.told("llm", "alloc 20 6000000"), machine.told("other")
    before = job.ask()
    size = suspend_for_a_while(machine)
    free = machine.memory - machine.used()
    assert int(other.ask("everything")) > free + size + CONTEXT // 2
    assert left(machine)
    machine.end(other)
    assert come_back(machine) == 0
    assert job.ask() == before


def test_a_restore_gets_the_room_of_the_context_too(machine: Machine) -> None:
    machine.memory = 512 * MIB
    jobs = {"large": machine.told("large", "alloc 1 6000000")}
    until(lambda: machine.used() > 2 * CONTEXT or None, 20, "the worker has its context")
    assert jobs["large"].ask(f"alloc 1 {machine.memory - machine.used() - CONTEXT // 2}") == "ok"
    before = {"large": jobs["large"].ask()}
    assert machine.ask("checkpoint", "large").code == 0
    jobs["llm"] = machine.told("llm", "alloc 10 6000000")
    before["llm"] = jobs["llm"].ask()
    suspend_for_a_while(machine)
    assert come_back(machine, "large") == 0
    until(lambda: left(machine) or None, 20, "memory and context have left")
    assert jobs["large"].ask() == before["large"]
    machine.end(jobs["large"])
    assert come_back(machine) == 0
    assert jobs["llm"].ask() == before["llm"]


def test_a_restore_waits_for_a_context_that_is_making_way(machine: Machine) -> None:
    job, before = machine.start()
    suspend_for_a_while(machine)
    with machine.held_at("checkpoint.frozen"):
        other = machine.asking.submit(machine.told, "other")
        machine.wait_held()
        back = machine.asking.submit(machine.ask, "restore", "llm")
        other.result(timeout=60)  # it waits for some seconds, and begins all the same
        assert not back.done()
    assert (back.result(timeout=60).code, job.ask()) == (0, before)


def test_a_context_that_the_user_has_stay_makes_no_way(machine: Machine) -> None:
    job, before = machine.start()
    suspend(machine, stays=True)
    machine.told("other")
    assert (machine.job("llm")["state"], resident(machine)) == ("data_suspended", 0)
    assert come_back(machine) == 0
    assert job.ask() == before


@pytest.mark.parametrize("stays", [True, False])
def test_the_context_leaves_and_the_memory_stays_where_it_is_there(machine: Machine, stays: bool) -> None:
    job, before = machine.start()
    there, used = suspend(machine, stays=stays) * stays, machine.used()
    gone = machine.gcr("checkpoint", "llm", "--resident")
    assert (gone.code, gone.body["state"], gone.body["resident_bytes"]) == (0, "suspended", there), gone.body
    assert (gone.body["vram_free_s"] is None) == stays
    assert (resident(machine), used - machine.used()) == (there, CONTEXT)
    assert come_back(machine) == there
    assert job.ask() == before


def test_calls_wait_all_the_time(machine: Machine) -> None:
    job, before = machine.start()
    suspend(machine, stays=True)
    job.tell()
    assert job.silent(0.3)
    assert machine.ask("checkpoint", "llm").code == 0
    assert job.silent(0.3)
    machine.come_back()
    assert job.hear() == before


@pytest.mark.parametrize("step", STEPS[:2])
def test_a_failure_leaves_the_data_suspended(machine: Machine, step: str) -> None:
    job, before = machine.start()
    for stays in (False, True):
        size = suspend(machine, stays=stays)
        machine.inject(f"checkpoint.{step} fail")
        failed = machine.ask("checkpoint", "llm")
        assert (failed.code, failed.body["error"]["state"]) == (4, "data_suspended"), failed.body
        machine.settled()
        assert (machine.job("llm")["state"], resident(machine)) == ("data_suspended", size * stays)
        assert come_back(machine) == size * stays
        assert job.ask() == before


def test_a_decision_that_cannot_be_written(machine: Machine) -> None:
    job, before = machine.start()
    suspend(machine, stays=False)
    (journal,) = (machine.folder / "state").glob("gcr/daemons/*/journal")
    journal.rename(machine.folder / "elsewhere")
    journal.write_text("in its way")
    failed = machine.ask("checkpoint", "llm")
    assert (failed.code, failed.body["error"]["state"]) == (4, "data_suspended"), failed.body
    journal.unlink()
    (machine.folder / "elsewhere").rename(journal)
    assert machine.ask("checkpoint", "llm").body["state"] == "suspended"
    machine.comes_back(job, before)


@pytest.mark.parametrize("who", OURS)
@pytest.mark.parametrize("step", STEPS)
def test_a_death_while_the_context_leaves(machine: Machine, who: Who, step: str) -> None:
    job, before = machine.start()
    suspend(machine, stays=True)
    strike(machine, job, who, "checkpoint", step)
    state = machine.settled()
    assert machine.job("llm")["state"] in ("suspended", "data_suspended"), state
    machine.comes_back(job, before)


def test_a_program_that_ends_meanwhile(machine: Machine) -> None:
    job, _ = machine.start()
    suspend(machine, stays=True)
    with machine.held_at("checkpoint.frozen"):
        leaving = machine.asking.submit(machine.ask, "checkpoint", "llm")
        machine.wait_held()
        os.kill(machine.target("llm"), signal.SIGKILL)
    assert leaving.result(timeout=60).code in (0, 3, 4)
    job.supervisor.wait(20)
    until(lambda: machine.job("llm") is None or None, 20, "the job is forgotten")
    until(lambda: machine.used() <= CONTEXT or None, 20, "the device is free")


def test_the_context_leaves_where_the_worker_has_ended(machine: Machine) -> None:
    job, before = machine.start()
    suspend(machine, stays=True)
    kill(*machine.children("gcr.worker"))
    until(lambda: resident(machine) == 0 or None, 20, "its memory is gone")
    gone = machine.gcr("checkpoint", "llm")
    assert (gone.code, gone.body["state"], gone.body["vram_after_bytes"]) == (0, "suspended", 0), gone.body
    machine.comes_back(job, before)


def test_a_server_tells_how_much_is_free_while_it_is_suspended(machine: Machine) -> None:
    """Its data is away, whatever else is on the device by then. Where its context stays the driver itself answers."""
    job = machine.told("llm", "alloc 6 3000000")
    free = int(job.ask("free_bytes"))
    size = suspend(machine, stays=True)
    assert free - CONTEXT <= int(job.ask("free_bytes")) <= free
    assert int(job.ask("free_bytes")) == machine.memory - machine.used()
    assert machine.ask("checkpoint", "llm").code == 0
    assert free - CONTEXT + size <= int(job.ask("free_bytes")) <= free + size
    machine.come_back()
    assert job.ask("alloc 1 3000000") == "ok"
    assert int(job.ask("free_bytes")) < free


def test_a_program_that_has_not_asked_before_waits_for_how_much_is_free(machine: Machine) -> None:
    job = machine.told("llm", "alloc 6 3000000")
    machine.leave()
    job.tell("free_bytes")
    assert job.silent(0.4)
    machine.come_back()
    assert int(job.hear()) > 0
