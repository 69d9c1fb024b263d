"""Counts of swaps are made of events, and read by OpenMetrics' own parser."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from reported import job_info, process

from gcr.api import jobevents
from gcr.api.jobevents import AnyEvent, EventBatch
from gcr.api.listings import JobInfo
from gcr.api.requests import EventsRequest
from gcr.errors import DaemonUnavailable, WrongVersion
from gcr.rendezvous import following
from gcr.serve import jobmetrics
from gcr.serve.jobgauges import JobsNow
from gcr.serve.jobmetrics import JobMetrics

COMMAND: dict[str, Any] = {"job": "llm", "transaction": "1", "by": "me"}
COPY: dict[str, Any] = {"copy_s": 0.5, "bytes_per_s": 1e9, "link_bytes_per_s": 2e9}
DONE: dict[str, Any] = {**COMMAND, **COPY, "state": "suspended", "simulated": True}
OUT = jobevents.CheckpointDone(
    **{**DONE, "strategy": "handoff", "stop_s": 0.25, "vram_free_s": 0.75, "image": None},
    bytes=1000,
    took_s=0.8,
    phases_s={"vram_free": 0.75, "prepared": 0.5},
)
IN = jobevents.RestoreDone(
    **{**DONE, "link_bytes_per_s": None}, cold=False, moved={}, bytes=1000, took_s=0.4, phases_s={}
)
FAILED = jobevents.RestoreFailed(**COMMAND, code="no_room", exit=3, message="short", state=None, took_s=0.1)
JOBS = tuple(
    job_info(state=state, processes=(process(bytes=size),))
    for state, size in (("running", 5), ("suspended", 7), ("suspended", 1))
)
EVENTS: list[AnyEvent] = [
    jobevents.DaemonStarted(pid=1, version="1"),
    *(OUT, IN, OUT, FAILED),
    jobevents.ImageWritten(job="llm", image="warm", durable_s=1.0, bytes_written=5),
    jobevents.ImageFailed(job="llm", image="warm", code="store_unusable", message="full"),
    jobevents.EventsMissed(count=7),
]


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {}
    for each in (sample for family in families for sample in family.samples):
        found[each.name, *(value for name, value in each.labels.items() if name != "le")] = each.value
    return found


def test_events_are_counted_by_direction_phase_and_code() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry)
    for event in EVENTS:
        metrics.count(event)
    found = samples(registry)
    assert found["gcr_job_swap_seconds_count", "checkpoint"] == 2
    assert found["gcr_job_swap_seconds_sum", "checkpoint"] == 1.6
    assert found["gcr_job_swap_seconds_count", "restore"] == 1
    assert found["gcr_job_stopped_seconds_sum",] == 0.5
    assert found["gcr_job_swap_bytes_total", "checkpoint"] == 2000
    assert found["gcr_job_link_share_sum", "checkpoint"] == 1.0
    assert ("gcr_job_link_share_sum", "restore") not in found
    assert found["gcr_job_phase_seconds_total", "checkpoint", "prepared"] == 1.0
    assert found["gcr_job_phase_seconds_total", "checkpoint", "vram_free"] == 0.5
    assert found["gcr_job_swap_failures_total", "no_room", "restore"] == 1
    assert found["gcr_job_images_total", "written"] == found["gcr_job_images_total", "failed"] == 1
    assert found["gcr_job_events_missed_total",] == 7
    assert "llm" not in generate_latest(registry).decode()


def test_jobs_are_shown_by_state_while_a_daemon_tells_of_them() -> None:
    registry, answers = CollectorRegistry(), iter([JOBS, (), None])

    def ask() -> tuple[JobInfo, ...]:
        if (answer := next(answers)) is None:
            raise DaemonUnavailable("none")
        return answer

    now = JobsNow(registry, ask)
    assert samples(registry) == {}
    now.look()
    found = samples(registry)
    assert [found["gcr_jobs", state] for state in ("running", "suspended", "restoring")] == [1, 2, 0]
    assert [found["gcr_job_bytes", state] for state in ("running", "suspended")] == [5, 8]
    now.look()
    assert set(samples(registry).values()) == {0}
    now.look()
    assert samples(registry) == {}


class Daemon:
    """A client's end of daemons that come, fail and go. `asked`: the numbers that were gone on from."""

    def __init__(self, *answers: Exception | EventBatch) -> None:
        self.answers, self.asked = [*answers], list[int | None]()

    def connect(self, **_how: object) -> "Daemon":
        if self.answers and isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)
        return self

    def ask(self, request: EventsRequest, _kind: object, *, timeout: float) -> EventBatch:
        self.asked.append(request.after)
        if not self.answers:
            raise SystemExit  # the thread ends
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("first", "after"), [([], None), ([DaemonUnavailable("none")], 0)])
def test_it_counts_from_now_on_and_all_of_the_daemons_that_come(
    monkeypatch: pytest.MonkeyPatch, first: list[Exception], after: int | None
) -> None:
    batch = EventBatch(daemon="d", last=9, events=(OUT,))
    daemon = Daemon(*first, batch, WrongVersion("newer"), batch)
    monkeypatch.setattr(following, "Client", daemon)
    monkeypatch.setattr(following, "AGAIN_S", 0.0)
    monkeypatch.setattr(jobmetrics, "AGAIN_S", 0.0)
    registry = CollectorRegistry()
    with pytest.raises(SystemExit):
        jobmetrics._follow(JobMetrics(registry).count)
    assert daemon.asked == [after, 9, 9, 9]
    assert samples(registry)["gcr_job_swap_seconds_count", "checkpoint"] == 2
