"""The turn at a job: one command changes it, and others may read copies that they made of it before."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event

import pytest

from gcr.daemon.active import Active
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.turn import Turn
from gcr.engine.node import World
from gcr.errors import WrongState
from gcr.job.process import Process
from gcr.processes import ProcessIdentity
from gcr.testing.machine import until


@pytest.fixture
def jobs():
    made = Jobs()
    made.add(Job("llm", "t", World("nvidia")))
    return made


@pytest.fixture
def job(jobs):
    return jobs.find("llm")


REFUSED = "llm is being checkpointed or restored just now"


@pytest.mark.parametrize("beside", [False, True])
def test_no_command_begins_while_another_changes_the_job(jobs, job, beside):
    second = jobs.changing(job, "checkpoint", beside_readers=beside)
    with jobs.changing(job, "checkpoint"), pytest.raises(WrongState, match=REFUSED), second:
        pytest.fail("there are two")
    assert not job.busy


def test_a_cut_begins_beside_commands_that_read_and_no_other_command_does(jobs, job):
    with jobs.changing(job, "checkpoint") as first:
        jobs.leave(first)
        with jobs.changing(job, "checkpoint", beside_readers=True) as second:
            with pytest.raises(WrongState, match=REFUSED):
                first.take_again()
            jobs.leave(second)
        assert job.busy and not job.turn.changing
        with pytest.raises(WrongState, match=REFUSED), jobs.changing(job, "restore"):
            pytest.fail("a copy is still being read")
    assert not job.busy
    with jobs.changing(job, "restore"):
        assert job.busy


def test_a_command_that_reads_may_take_the_turn_again(jobs, job):
    with jobs.changing(job, "checkpoint") as hold:
        hold.take_again()  # it has it
        jobs.leave(hold)
        hold.take_again()
        assert job.turn.changing
        with pytest.raises(WrongState), jobs.changing(job, "checkpoint", beside_readers=True):
            pytest.fail("there are two")
    assert not job.busy


def test_a_process_that_comes_waits_for_a_command_that_changes_the_job_and_for_no_other(jobs, job):
    process = job.processes[7] = Process("llm", ProcessIdentity(7, 8), waits=True)
    with jobs.changing(job, "checkpoint") as hold:
        assert job.holds_newcomers
        jobs.leave(hold)
        assert not job.holds_newcomers
        assert not process.waits


def test_the_targets_of_a_transaction_are_found_until_its_own_end(jobs):
    class Target:
        pid = 7

    first, second = Target(), Target()
    former = Active(jobs, [first])
    former.__enter__()
    with Active(jobs, [second]):
        former.__exit__()
        assert jobs.targets == {7: second}
    assert jobs.targets == {}


def test_saves_of_several_processes_go_on_at_once_and_beside_readers_and_none_beside_a_command(jobs, job, monkeypatch):
    monkeypatch.setattr("gcr.daemon.jobs.COPY_PATIENCE", 0.01)
    with jobs.changing(job, "checkpoint") as first:
        with pytest.raises(WrongState, match=REFUSED), jobs.saving(job, 1):
            pytest.fail("a save would wait for the command")
        jobs.leave(first)
        with jobs.saving(job, 1) as one, jobs.saving(job, 2):
            with pytest.raises(WrongState, match=REFUSED), jobs.saving(job, 1):
                pytest.fail("the agent of one process has two transactions")
            jobs.copied(one)
            with jobs.saving(job, 1):
                assert job.busy and not job.turn.changing
    assert not job.busy


@pytest.mark.parametrize("beside", [False, True])
def test_a_command_waits_for_saves_and_no_other_begins_meanwhile(jobs, job, beside):
    took = Event()

    def command():
        with jobs.changing(job, "checkpoint", beside_readers=beside):
            took.set()

    with ThreadPoolExecutor(1) as pool, ExitStack() as under_way:
        save = under_way.enter_context(jobs.saving(job, 1))
        waiting = pool.submit(command)
        until(lambda: job.turn._awaiting or None, 20, "the command waits")
        with pytest.raises(WrongState, match=REFUSED), jobs.saving(job, 2):
            pytest.fail("saves could keep a command waiting for ever")
        assert not took.is_set()
        jobs.copied(save)
        assert took.wait(5 if beside else 0.05) is beside
        under_way.close()
        waiting.result(5)
    assert took.is_set() and not job.busy


def test_a_save_waits_for_a_copy_of_its_process_that_is_nearly_over(jobs, job):
    def second():
        with jobs.saving(job, 1):
            return job.turn.busy

    with ThreadPoolExecutor(1) as pool, jobs.saving(job, 1) as first:
        waiting = pool.submit(second)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        jobs.copied(first)
        assert waiting.result(5)


def test_a_command_gives_up_waiting_for_saves(jobs, job, monkeypatch):
    monkeypatch.setattr("gcr.daemon.jobs.SAVES_PATIENCE", 0.01)
    with jobs.saving(job, 1):
        with pytest.raises(WrongState, match=REFUSED), jobs.changing(job, "restore"):
            pytest.fail("a save uses the process")
        with jobs.saving(job, 2):
            assert job.busy
    assert not job.busy


def test_a_save_is_refused_while_the_job_is_to_be_recovered(jobs, job):
    job.turn.settled.clear()
    with pytest.raises(WrongState, match=REFUSED), jobs.saving(job, 1):
        pytest.fail("its process is in no known state")


def test_commands_wait_for_a_turn_that_is_waited_for(jobs, job):
    """Others are refused, as ever, where a command has it."""
    with ThreadPoolExecutor(1) as pool, ExitStack() as restore:
        with jobs.changing(job, "make way", waited_for=True):
            waiting = pool.submit(restore.enter_context, jobs.changing(job, "restore"))
            until(lambda: job.turn._awaiting, 10, "it waits")
            assert not waiting.done()
        assert waiting.result(timeout=10)
        with pytest.raises(WrongState, match=REFUSED), jobs.changing(job, "checkpoint"):
            pytest.fail("there are two")


def test_a_recovery_that_is_due_is_told_of_as_one_that_has_the_turn():
    """Until it is over the job may be said to run although a gate is closed."""
    turn = Turn()
    assert not turn.is_awaited
    turn.settled.clear()
    assert (turn.changing, turn.is_awaited) == (False, True)
    turn.settled.set()
    assert turn.take()
    assert turn.is_awaited
    turn.give_back()
    assert not turn.is_awaited
