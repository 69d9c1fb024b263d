"""After a cancelled command its caller is told where the job stands, once another command may follow."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from reported import job_info

from gcr.api.listings import JobInfo
from gcr.rendezvous import client
from gcr.rendezvous.client import settle


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[JobInfo]:
    """The rows that a daemon shows, one after the other; the last one from then on."""
    shown: list[JobInfo] = []

    @contextmanager
    def connect(**_: object) -> Iterator[object]:
        yield SimpleNamespace(jobs=lambda: SimpleNamespace(jobs=[shown.pop(0) if len(shown) > 1 else shown[0]]))

    monkeypatch.setattr(client, "Client", SimpleNamespace(connect=connect))
    return shown


def test_it_waits_until_no_command_has_its_turn_at_the_job(rows: list[JobInfo]) -> None:
    over = job_info(state="running")
    rows += [job_info(state="prepared"), job_info(state="running", changing=True), over]
    assert settle("llm") == over


def test_another_command_that_took_its_turn_meanwhile_is_not_waited_for(rows: list[JobInfo]) -> None:
    rows += [job_info(state="suspended", changing=True)]
    assert settle("llm", timeout=0.2) == rows[0]


def test_a_job_that_never_stands_still_is_in_an_unknown_state(rows: list[JobInfo]) -> None:
    rows += [job_info(state="restoring", changing=True)]
    assert settle("llm", timeout=0.2) is None
