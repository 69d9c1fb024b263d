"""Every step ends before an error is looked at: no undo may run beside the step it undoes."""

import threading

import pytest

from gcr.engine.side_by_side import side_by_side
from gcr.errors import RolledBack


def test_the_slow_step_has_ended_when_the_error_arrives() -> None:
    ended = threading.Event()
    go_on = threading.Event()

    def fails() -> None:
        go_on.set()
        raise RolledBack("first")

    def slow() -> None:
        assert go_on.wait(5)
        ended.set()

    with pytest.raises(RolledBack, match="first"):
        side_by_side([fails, slow])
    assert ended.is_set()


def test_other_errors_become_notes_of_the_first() -> None:
    def fail_with(text: str) -> None:
        raise RolledBack(text)

    with pytest.raises(RolledBack) as caught:
        side_by_side([lambda: fail_with("one"), lambda: fail_with("two")])
    assert caught.value.__notes__ == ["beside it: two"]


def test_one_step_runs_on_the_calling_thread() -> None:
    seen: list[threading.Thread] = []
    side_by_side([lambda: seen.append(threading.current_thread())])
    assert seen == [threading.current_thread()]


def test_no_steps_are_no_error() -> None:
    side_by_side([])
