"""Parking by `gcr serve`: the memory stays on the device where that is wanted and possible."""

from typing import Any

import pytest

from gcr.errors import GcrError, UnsupportedState
from gcr.serve.config import Parking
from gcr.serve.jobs import NodeJobs


class Asked:
    """A job that notes how it is checkpointed. `fails`: with the memory staying."""

    name = "chat"

    def __init__(self, fails: GcrError | None = None) -> None:
        self.how: list[dict[str, object]] = []
        self._fails = fails

    def checkpoint(self, **how: object) -> str:
        self.how.append(how)
        if self._fails and how.get("resident"):
            raise self._fails
        return "report"


@pytest.mark.parametrize(
    ("configured", "how"),
    [
        ({}, {"resident": True}),
        ({"resident": False}, {"data_only": False}),
        ({"data_only": True}, {"data_only": True}),
    ],
)
def test_a_model_is_parked_as_configured(configured: dict[str, bool], how: dict[str, bool]) -> None:
    job: Any = Asked()
    assert NodeJobs({}, parking=Parking(**configured))._parked(job) == "report"
    assert job.how == [how]


def test_a_model_whose_memory_cannot_stay_is_parked_without() -> None:
    job: Any = Asked(UnsupportedState("it shares memory"))
    assert NodeJobs({})._parked(job) == "report"
    assert job.how == [{"resident": True}, {}]


def test_another_failure_is_not_tried_again() -> None:
    job: Any = Asked(GcrError("no"))
    with pytest.raises(GcrError):
        NodeJobs({})._parked(job)
    assert job.how == [{"resident": True}]
