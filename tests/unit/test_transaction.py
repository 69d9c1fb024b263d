import threading
from functools import partial

import pytest

from gcr.engine.transaction import Transaction
from gcr.errors import NoRoom

GiB = 1 << 30


def fail_with(error: BaseException):
    def fail() -> None:
        raise error

    return fail


def test_what_was_done_is_undone_last_first():
    done = []
    with pytest.raises(NoRoom), Transaction("llm") as undo:
        undo.push("lock", lambda: done.append("unlock"))
        undo.push("export", lambda: done.append("forget"))
        raise NoRoom("no", missing=1)
    assert done == ["forget", "unlock"]


def test_a_commit_keeps_what_was_done_and_only_that():
    done = []
    with Transaction("llm") as undo:
        undo.push("lock", lambda: done.append("unlock"))
        undo.commit()
        undo.push("after", lambda: done.append("undo after"))
    assert done == ["undo after"]


def test_leaving_without_a_commit_undoes_even_without_an_error():
    done = []
    with Transaction() as undo:
        undo.push("lock", lambda: done.append("unlock"))
    assert done == ["unlock"]


def test_a_failed_undo_neither_hides_the_error_nor_stops_the_others():
    done = []
    gone = OSError("gone")
    with pytest.raises(NoRoom) as caught, Transaction("llm") as undo:
        undo.push("lock", lambda: done.append("unlock"))
        undo.push("export", fail_with(gone))
        raise NoRoom("no", missing=4 * GiB)
    assert done == ["unlock"]
    assert caught.value.__notes__ == ["undo of export failed as well: gone"]
    assert undo.failed == [("export", gone)]


def test_the_log_names_the_job_and_the_step(caplog):
    with Transaction("llm") as undo:
        undo.push("export", fail_with(OSError("gone")))
    assert "job llm: undo of export failed" in caplog.text


def test_an_interrupt_rolls_back_as_an_error_does():
    done = []
    with pytest.raises(KeyboardInterrupt), Transaction() as undo:
        undo.push("lock", lambda: done.append("unlock"))
        raise KeyboardInterrupt
    assert done == ["unlock"]


def test_steps_of_many_threads_are_all_undone():
    done = []
    with Transaction() as undo:

        def steps(thread: int) -> None:
            for step in range(100):
                undo.push(f"{thread}.{step}", partial(done.append, (thread, step)))

        threads = [threading.Thread(target=steps, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert sorted(done) == [(thread, step) for thread in range(8) for step in range(100)]
