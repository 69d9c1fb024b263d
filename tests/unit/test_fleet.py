"""Children that answer no more: others take their place after their end; no caller waits for one that cannot end."""

import subprocess
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gcr.daemon import fleet as module
from gcr.daemon.fleet import Child
from gcr.errors import DeadlinePassed


class Process:
    """`hangs`: in its driver, so that the kernel does not end it."""

    pid = 7

    def __init__(self, hangs: bool = False) -> None:
        self.hangs, self.killed = hangs, False

    def poll(self) -> int | None:
        return None if self.hangs or not self.killed else -9

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "a wait without end"
        if self.poll() is None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return -9


def child(process: Process, silent: bool, answers: bool) -> Child[Any]:
    def call_json(*_words: object, **_how: object) -> tuple[dict[str, Any], list[int]]:
        if not answers:
            raise DeadlinePassed("no reply")
        return {}, []

    channel = SimpleNamespace(closed=threading.Event(), silent=silent, call_json=call_json, close=lambda: None)
    return Child(cast("Any", process), cast("Any", channel), cast("Any", None))


@pytest.mark.parametrize(("silent", "answers"), [(False, False), (True, True)])
def test_one_that_answers_serves_on(silent: bool, answers: bool) -> None:
    """A child that has answered every call is not asked."""
    process = Process()
    assert child(process, silent, answers).serves() and not process.killed


@pytest.mark.parametrize("hangs", [False, True])
def test_one_that_does_not_is_ended_and_waited_for_no_longer_than_that_takes(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    process = Process(hangs)
    assert not child(process, True, False).serves()
    assert process.killed
