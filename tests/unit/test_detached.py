"""`gcr run -d`, the half that stays."""

import os
import select
import signal
import threading
import time

import pytest

from gcr.errors import Interrupted
from gcr.supervisor import process
from gcr.supervisor.spec import JobSpec

SPEC = JobSpec(("true",), None, detach=True)


def test_the_program_stays_supervised_where_its_starter_has_left(monkeypatch):
    """The starter has left by Ctrl-C, say: the program may run by then."""

    def run(_spec, started, may_start):
        may_start()
        started(type("Started", (), {"name": "llm", "diary": type("Diary", (), {"log": "/logs/llm"})}))
        return process.Outcome(7, "llm")

    monkeypatch.setattr(process, "_run", run)
    (answer, tell), (stopped, stop) = os.pipe(), os.pipe()
    os.close(answer)
    os.close(stop)
    assert process._run_detached(SPEC, tell, stopped) == 7


@pytest.mark.parametrize("had_started", [True, False])
def test_the_starter_says_after_a_ctrl_c_whether_the_job_runs(monkeypatch, had_started):
    def run(_spec, started, may_start):
        if not had_started:
            may_start()
        started(type("Started", (), {"name": "llm", "diary": type("Diary", (), {"log": "/logs/llm"})}))
        return process.Outcome(7, "llm")

    monkeypatch.setattr(process, "_run", run)
    (answer, tell), (stopped, stop) = os.pipe(), os.pipe()

    def press():
        time.sleep(0.2)  # the starter waits by now
        os.kill(os.getpid(), signal.SIGINT)
        select.select([stopped], [], [], 10)  # it has told the half that stays
        process._run_detached(SPEC, tell, stopped)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(Interrupted) as told:
        process._await_detached(answer, stop)
    pressing.join(10)
    assert ("llm had started: it runs" in told.value.message) == had_started
    assert ("was not started" in told.value.message) != had_started
