"""Every step ends before an error is looked at: no undo may run beside the step it undoes."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from gcr.engine import side_by_side as module
from gcr.engine.side_by_side import ALL, AT_ONCE, side_by_side
from gcr.errors import Refused, RolledBack
from gcr.peers.worker import WorkerPeer
from gcr.protocol.channel import Channel, Request
from gcr.protocol.servers import COORDINATOR, STRANGER, Bounds


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


def test_at_most_so_many_run_at_once_and_what_they_return_is_in_order() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def step(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        return number

    assert side_by_side(partial(step, number) for number in range(1000)) == list(range(1000))
    assert 1 < most <= AT_ONCE


def test_steps_that_wait_for_each_other_all_run_at_once() -> None:
    together = threading.Barrier(AT_ONCE + 36)
    side_by_side([partial(together.wait, 20.0)] * together.parties, ALL)


def test_a_process_without_room_for_threads_runs_them_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Few(threading.Thread):
        left = 3

        def start(self) -> None:
            if not Few.left:
                raise RuntimeError("can't start new thread")
            Few.left -= 1
            super().start()

    monkeypatch.setattr(module, "Thread", Few)
    assert side_by_side([partial(int, number) for number in range(300)]) == list(range(300))
    Few.left = 0
    assert side_by_side([partial(int, number) for number in range(300)]) == list(range(300))


def worker(bounds: Bounds, awaited: threading.Event | None = None) -> tuple[WorkerPeer, Channel, set[str]]:
    """One that takes a while for everything, or waits for an event, and what it was asked to release."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    served: set[str] = set()

    def serve(request: Request) -> None:
        awaited.wait(20) if awaited else time.sleep(0.02)
        served.add(request.json()["hold"])
        request.reply_json()

    end = Channel(theirs, serve, bounds=bounds).start()
    return WorkerPeer(Channel(ours, name="worker").start(), 7, "GPU-1"), end, served


@pytest.mark.parametrize("bounds, holds", [(COORDINATOR, True), (STRANGER, False)])
def test_jobs_of_a_thousand_processes_are_queued_and_never_refused(bounds: Bounds, holds: bool) -> None:
    """Eight jobs on one device, as many steps at once as they may have. A stranger's bounds refuse some."""
    refused = threading.Event()
    peer, end, served = worker(bounds, None if holds else refused)

    def release(name: str) -> None:
        try:
            peer.release(name)
        except Refused:
            refused.set()
            raise

    def job(number: int) -> None:
        side_by_side(partial(release, f"{number}.{process}") for process in range(125))

    with ThreadPoolExecutor(8) as jobs:
        done = [jobs.submit(job, number) for number in range(8)]
        errors = [error for error in (one.exception() for one in done) if error]
    assert (len(served) == 1000 and not errors) if holds else any(isinstance(error, Refused) for error in errors)
    peer.channel.close()
    end.closed.wait(5)


def test_one_job_of_a_thousand_processes_is_within_anybody_s_bounds() -> None:
    peer, end, served = worker(STRANGER)
    side_by_side(partial(peer.release, f"{process}.1") for process in range(1000))
    assert len(served) == 1000
    peer.channel.close()
    end.closed.wait(5)
