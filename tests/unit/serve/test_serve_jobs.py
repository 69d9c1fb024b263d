"""Jobs of `gcr serve`: parking, where memory stays on the device if it can; and images, which end no other job."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gcr import processes
from gcr.api.requests import NextJob
from gcr.errors import GcrError, NoRoom, UnsupportedState, WrongState
from gcr.names import JOB_NAME
from gcr.protocol.begun import Surroundings
from gcr.serve import jobs as serve_jobs
from gcr.serve import origin
from gcr.serve.config import ModelConfig, Parking, load
from gcr.serve.jobs import NodeJobs
from gcr.serve.upstream import Found, Next


class Asked:
    """A job that notes how it is checkpointed. `fails`: with the memory staying."""

    name = "chat"

    def __init__(self, fails: GcrError | None = None) -> None:
        self.how: list[dict[str, object]] = []
        self.report: Any = "report"
        self._fails = fails

    def checkpoint(self, **how: object) -> Any:
        self.how.append(how)
        if self._fails and how.get("resident"):
            raise self._fails
        return self.report


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("configured", "how"),
    [
        ({}, {"data_only": False, "resident": True}),
        ({"data_only": False}, {"data_only": False, "resident": True}),
        ({"resident": False}, {"data_only": False}),
        ({"data_only": True}, {"data_only": True, "resident": True}),
        ({"data_only": True, "resident": False}, {"data_only": True}),
    ],
)
def test_a_model_is_parked_as_configured(configured: dict[str, bool], how: dict[str, bool], later: bool) -> None:
    job: Any = Asked()
    assert NodeJobs({}, parking=Parking(**configured))._parked(job, later) == "report"
    assert job.how == [{**how, "context_later": later and not how["data_only"], "then": None}]


def test_the_model_that_comes_in_next_is_named_with_the_room_that_it_may_have() -> None:
    job: Any = Asked()
    NodeJobs({}, parking=Parking(resident=False))._parked(job, True, Next("b", 5))
    assert job.how == [{"data_only": False, "context_later": True, "then": NextJob("b", 5)}]


def test_a_model_whose_memory_cannot_stay_is_parked_without() -> None:
    job: Any = Asked(UnsupportedState("it shares memory"))
    assert NodeJobs({})._parked(job, False) == "report"
    how = {"data_only": False, "context_later": False, "then": None}
    assert job.how == [{**how, "resident": True}, how]


def test_another_failure_is_not_tried_again() -> None:
    job: Any = Asked(GcrError("no"))
    with pytest.raises(GcrError):
        NodeJobs({})._parked(job, False)
    assert len(job.how) == 1


class Seen(NodeJobs):
    """Jobs that are found as `found` says, one answer after the other, the last again and again. `ended`: pids"""

    def __init__(self, *found: Found | None) -> None:
        super().__init__({})
        self.answers, self.ended = [*found], list[int]()

    async def find(self) -> Mapping[str, Found]:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return {"chat": found} if found else {}

    async def end(self, name: str, job: Found) -> None:
        self.ended.append(job.pid)


@pytest.mark.parametrize(
    ("context", "memory", "how"),
    [(True, True, [{}]), (True, False, [{"resident": True}]), (False, True, []), (None, True, [])],
)
def test_a_context_leaves_only_where_it_is_that_of_a_parked_model(
    monkeypatch: pytest.MonkeyPatch, context: bool | None, memory: bool, how: list[object]
) -> None:
    job: Any = Asked()
    monkeypatch.setattr(serve_jobs, "Job", lambda _name, _pid: job)
    found = None if context is None else living(parked=bool(context), context=bool(context))
    job.report = SimpleNamespace(control_s=0.4, vram_free_s=0.5)
    with nullcontext() if how else pytest.raises(WrongState):
        assert asyncio.run(Seen(found).leave("chat", memory)) == {"control": 0.4}
    assert job.how == how


@pytest.mark.parametrize("context", [True, False])
def test_a_context_that_the_daemon_had_leave_meanwhile_has_left(monkeypatch: pytest.MonkeyPatch, context: bool) -> None:
    job: Any = Asked()
    job.checkpoint = lambda **_how: _raise(WrongState("it is suspended already"))
    monkeypatch.setattr(serve_jobs, "Job", lambda _name, _pid: job)
    seen = Seen(living(parked=True, context=True), living(parked=True, context=context))
    with pytest.raises(WrongState) if context else nullcontext():
        asyncio.run(seen.leave("chat", True))


def _raise(error: GcrError) -> None:
    raise error


def living(**how: Any) -> Found:
    return Found(pid=os.getpid(), port=1, start=processes.start_time(os.getpid()), **how)


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    (tmp_path / "gcr.toml").write_text('[models.chat]\ncommand = "serve {port}"\nimage = "1"\n')
    return load(tmp_path / "gcr.toml").models["chat"]


def test_a_job_that_is_there_is_left_to_the_start(model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "restored", lambda _model, _options: pytest.fail("it was restored"))
    for found in (living(), living(parked=True)):
        assert asyncio.run(Seen(found).restored(model)) is None


def test_a_job_that_is_ending_is_waited_for(model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "restored", lambda _model, _options: True)
    gone, back = Found(pid=1 << 22, port=1), living()
    assert asyncio.run(Seen(gone, gone, None, back).restored(model)) == back


@pytest.mark.parametrize(
    ("left", "ended"),
    [(None, []), (living(), []), (living(parked=True), [os.getpid()])],
    ids=["none", "runs", "parked"],
)
def test_what_came_back_in_part_is_ended(
    model: ModelConfig, monkeypatch: pytest.MonkeyPatch, left: Found | None, ended: list[int]
) -> None:
    def no_room(_model: ModelConfig, _options: Sequence[str]) -> bool:
        raise NoRoom("8 bytes short", missing=8)

    monkeypatch.setattr(origin, "restored", no_room)
    jobs = Seen(None, left)
    with pytest.raises(NoRoom):
        asyncio.run(jobs.restored(model))
    assert jobs.ended == ended


def test_each_model_has_an_image_of_its_own_and_a_simulated_one_is_another(model: ModelConfig) -> None:
    name = "a-long-name-of-a-model-of-"
    configured = [
        model,
        *(replace(model, name=f"{name}{number}") for number in (1, 2)),
        replace(model, command=("other", "{port}")),
        replace(model, port=1),
        replace(model, surroundings=Surroundings({"A": "1"})),
        replace(model, surroundings=Surroundings(None, "/")),
        replace(model, beginning=replace(model.beginning, image="2")),
    ]
    names = [origin.image_of(each, options) for each in configured for options in ((), ("--simulate", "nvidia"))]
    assert len(set(names)) == len(names)
    assert all(JOB_NAME.match(each) for each in names)
