"""Commands on a job whose processes end meanwhile: begun again with those that are left."""

import os
from collections.abc import Callable

import pytest

from gcr.daemon.departures import ending, without_departed
from gcr.daemon.jobs import Job
from gcr.engine.node import World
from gcr.errors import GcrError, JobEnding, NotAGpuProcess, PeerGone
from gcr.job import process as module
from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity, identify

OTHER = 2**22 - 1


@pytest.fixture
def job() -> Job:
    """One process that lives, and one that does not."""
    made, living = Job("llm", "", World("nvidia")), identify(os.getpid())
    assert living
    made.processes[living.pid] = Process("llm", living)
    made.processes[OTHER] = Process("llm", ProcessIdentity(OTHER, 1))
    return made


def failing(times: int, before: Callable[[], object] = lambda: None) -> Callable[[], str]:
    calls = []

    def attempt() -> str:
        calls.append(before())
        if len(calls) <= times:
            raise PeerGone("it has ended")
        return f"done at call {len(calls)}"

    return attempt


def test_it_is_begun_again_when_a_process_has_ended(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = {OTHER}
    monkeypatch.setattr(module, "alive", lambda identity: identity.pid in lives or identity.pid == os.getpid())
    assert without_departed(job, failing(1, lambda: lives.discard(OTHER))) == "done at call 2"
    assert job.processes[OTHER].state == State.EXITED


def test_an_end_that_was_there_before_explains_no_failure(job: Job) -> None:
    with pytest.raises(PeerGone):
        without_departed(job, failing(1))


def test_an_end_is_for_good(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may name the former program again in the middle of an exec."""
    seen = iter([False, True, True, True])
    monkeypatch.setattr(module, "alive", lambda identity: identity.pid == os.getpid() or next(seen))
    assert without_departed(job, failing(0)) == "done at call 1"
    assert job.processes[OTHER].departed


def test_where_no_process_is_left_it_says_so(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    del job.processes[os.getpid()]
    lives = [True]
    monkeypatch.setattr(module, "alive", lambda identity: bool(lives))
    with pytest.raises(JobEnding):
        without_departed(job, failing(1, lives.clear))


def test_where_the_program_lives_on_it_is_not_said_to_end(job: Job) -> None:
    """It became one without a device, say."""
    job.processes.clear()
    job.program.pid = os.getpid()
    assert isinstance(ending(job), NotAGpuProcess)
    job.program.pid = OTHER
    assert isinstance(ending(job), JobEnding)


def test_what_comes_in_place_of_an_end_is_what_it_is_begun_again_with(job: Job) -> None:
    """An exec: the checkpoint finds its processes gone, and the new program is in their place."""
    living = job.processes.pop(os.getpid())

    def attempt() -> str:
        if living.identity.pid in job.processes:
            return "done"
        job.processes[living.identity.pid] = living
        job.ends.count += 1
        raise ending(job)

    assert without_departed(job, attempt) == "done"


def test_other_failures_are_what_they_are(job: Job) -> None:
    def attempt() -> str:
        raise GcrError("a bug")

    with pytest.raises(GcrError, match="a bug"):
        without_departed(job, attempt)
