"""Refusals as seen from outside; the refused program runs on unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

from machine import Answer, Machine, Victim


def refused(answer: Answer, code: str, exit_code: int = 3) -> str:
    """Its message, once code and exit are as they should be."""
    assert answer.body.get("ok") is False, answer.body
    error = answer.body["error"]
    assert (answer.code, error["exit"], error["code"]) == (exit_code, exit_code, code), error
    return str(error["message"])


@contextmanager
def untouched(machine: Machine, job: Victim) -> Iterator[None]:
    """Checks that a job refused within the block goes on unchanged."""
    before = job.ask()
    yield
    assert job.ask() == before
    assert machine.job(job.name)["state"] == "running"
