"""Reports of a transfer: bytes that only grow, the last second's rate, a share of links that are known."""

import threading
from types import SimpleNamespace

import pytest

from gcr.engine.node import Course
from gcr.engine.progress import Meter
from gcr.protocol.operations.operation import Done
from gcr.worker.link import IN, OUT, Link

GB = 10**9


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def meter(sizes, clock=None):
    told = []
    course = Course("checkpoint", 1, 60, progress=lambda event: told.append(event.to_json()))
    return Meter(course, "draining", sizes, clock or Clock()), told


def test_the_copies_of_all_devices_are_one_transfer():
    clock = Clock()
    both, told = meter({(1, "a"): 3 * GB, (1, "b"): 1 * GB}, clock)
    both.start()
    clock.now += 0.5
    both.at((1, "a"), Done(1 * GB))
    both.at((1, "b"), Done(1 * GB))
    assert told[0] == {"phase": "draining", "bytes": 0, "total_bytes": 4 * GB}
    assert told[-1] == {
        "phase": "draining", "bytes": 2 * GB, "total_bytes": 4 * GB, "bytes_per_s": 4.0 * GB, "left_s": 0.5,
    }  # fmt: skip


def test_a_copy_may_have_less_to_do_than_was_thought():
    clock = Clock()
    both, told = meter({(1, "a"): 30 * GB, (1, "b"): 1 * GB}, clock)
    both.start()
    clock.now += 0.5
    both.at((1, "a"), Done(1 * GB, total_bytes=3 * GB))
    assert (told[-1]["total_bytes"], told[-1]["left_s"]) == (4 * GB, 1.5)


def test_the_rate_is_the_last_second_s():
    clock = Clock()
    one, told = meter({(1, "a"): 100 * GB}, clock)
    one.start()
    for step in range(1, 51):  # five seconds at 10 GB/s, then it slows down to 1
        clock.now += 0.1
        one.at((1, "a"), Done(step * GB))
    assert told[-1]["bytes_per_s"] == pytest.approx(10 * GB)
    for step in range(1, 21):
        clock.now += 0.1
        one.at((1, "a"), Done(50 * GB + step * GB // 10))
    assert told[-1]["bytes_per_s"] == pytest.approx(1 * GB)
    assert told[-1]["left_s"] == pytest.approx(48.0)


def test_looks_between_two_pieces_do_not_change_the_rate_but_a_standstill_does():
    clock = Clock()
    one, told = meter({(1, "a"): 100 * GB}, clock)
    one.start()
    for step in range(1, 30):  # pieces of 4 GB every 0.4 s
        clock.now += 0.1
        one.at((1, "a"), Done(step // 4 * 4 * GB))
    assert [report["bytes_per_s"] for report in told[4:]] == pytest.approx([10 * GB] * 26)
    for _ in range(30):
        clock.now += 0.1
        one.at((1, "a"), Done(28 * GB))
    assert told[-1]["bytes_per_s"] < 2 * GB


def test_a_late_report_takes_nothing_back():
    one, told = meter({(1, "a"): 2 * GB})
    one.at((1, "a"), Done(2 * GB))
    one.at((1, "a"), Done(1 * GB))
    assert told[-1]["bytes"] == 2 * GB


@pytest.mark.parametrize(("links", "share"), [((4 * GB, 4 * GB), 0.25), ((4 * GB, None), None), ((None, None), None)])
def test_the_share_is_of_all_links_or_not_told(links, share):
    clock = Clock()
    both, told = meter({(1, "a"): 2 * GB, (2, "a"): 1 * GB, (1, "b"): 2 * GB}, clock)
    both.start()
    clock.now += 1
    both.at((1, "a"), Done(1 * GB, link_bytes_per_s=links[0]))
    both.at((1, "b"), Done(1 * GB, link_bytes_per_s=links[1]))
    assert told[-1].get("link_share") == share


def test_no_time_has_passed_and_nothing_is_divided_by_it():
    one, told = meter({(1, "a"): 1 * GB})
    one.start()
    one.at((1, "a"), Done(1 * GB))
    assert "bytes_per_s" not in told[-1]
    assert "left_s" not in told[-1]


def test_reports_leave_in_the_order_of_what_they_say():
    many, told = meter({(n, "a"): 1000 for n in range(8)})
    threads = [
        threading.Thread(target=lambda n=n: [many.at((n, "a"), Done(b)) for b in range(0, 1001, 10)]) for n in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    seen = [report["bytes"] for report in told]
    assert seen == sorted(seen)
    assert seen[-1] == 8000


def test_a_worker_adds_the_speed_of_its_link_once_it_is_measured():
    told = []
    link = Link(None, None)
    tell = link.teller(SimpleNamespace(progress=told.append), OUT)
    tell(Done(1))
    link.speeds = {OUT: 4.0 * GB, IN: 5.0 * GB}
    tell(Done(2, total_bytes=9))
    assert told == [{"bytes": 1}, {"bytes": 2, "total_bytes": 9, "link_bytes_per_s": 4.0 * GB}]
