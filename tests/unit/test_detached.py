"""`gcr run -d`, the half that stays."""

import os

from gcr.supervisor import process
from gcr.supervisor.spec import JobSpec


def test_the_program_stays_supervised_where_its_starter_has_left(monkeypatch):
    """By Ctrl-C, say: the program may run by then."""

    def run(_spec, started):
        started(type("Started", (), {"name": "llm", "diary": type("Diary", (), {"log": "/logs/llm"})}))
        return process.Outcome(7, "llm")

    monkeypatch.setattr(process, "_run", run)
    answer, tell = os.pipe()
    os.close(answer)
    assert process._run_detached(JobSpec(("true",), None, detach=True), tell) == 7
