"""A source brings a job back whose migration lost its command, and no other node does; all others are named."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gcr.api.answers import Answer, MovingJob
from gcr.api.jobevents import JobRecovered
from gcr.api.migrations import AnyStep, Forget, Found, Move, RanOn, Run, Stepped
from gcr.cli import migrating
from gcr.daemon.commands import unsettled as module
from gcr.daemon.commands.unsettled import Unsettled
from gcr.errors import NoRoom
from gcr.job.migrations import Migration, Migrations, Stage
from gcr.job.mover import Mover
from gcr.protocol.jsonbody import error_from_json
from gcr.testing.machine import until

HERE = [Stage.COPYING, Stage.LEAVING, Stage.KEPT]
GONE, ALIVE, ELSEWHERE = (replace(Mover.ourselves(), **more) for more in ({"start": 1}, {}, {"space": "pid:[1]"}))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Migrations:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    return Migrations.here()


def record(stage: Stage, mover: Mover | None = GONE, job: str = "llm") -> Migration:
    images = ("migration-aaaaaaaaaaaa-1",)
    return Migration(
        id=job[0] * 32 if job[0] in "abcdef" else "a" * 32,
        job=job,
        stage=stage,
        here="node-1",
        peer="node-2",
        store="/s",
        images=images,
        mover=mover,
    )


class Node:
    """The steps that it took, and its events. `fails`: those that raise."""

    def __init__(self, here: Migrations, fails: Callable[[AnyStep], bool] = lambda _step: False) -> None:
        self.here, self.fails = here, fails
        self.steps: list[AnyStep] = []
        self.events: list[JobRecovered] = []
        self.unsettled = Unsettled(self.take, self.events.append)

    def take(self, step: AnyStep, _limit: float) -> Answer:
        self.steps.append(step)
        if self.fails(step):
            raise NoRoom("no room", missing=1)
        if isinstance(step, Move):
            self.here.move(step.job, step.id, Stage(step.stage))
        if isinstance(step, Forget):
            self.here.end(step.job, step.id)
        return Stepped(found=RanOn(state="running").to_json()) if isinstance(step, Run) else Found()

    def recovered(self) -> MovingJob:
        (found,) = self.unsettled.of_all()
        return found


@pytest.mark.parametrize("stage", HERE)
def test_a_job_that_was_not_given_away_comes_back(here: Migrations, stage: Stage) -> None:
    here.begin(record(stage))
    node = Node(here)
    told = node.recovered()
    assert [type(step) for step in node.steps] == [Move, Run, Forget]
    assert node.steps[1] == Run(job="llm", id="a" * 32, images=record(stage).images)
    assert (told.outcome, told.error) == ("settled", None)
    assert told.command == "gcr migrate llm --from node-1 --to node-2 --recover"
    assert [(event.was, event.state) for event in node.events] == [(stage, "running")]
    assert here.all() == []
    assert node.unsettled.of_all() == ()


@pytest.mark.parametrize("mover", [ALIVE, ELSEWHERE, None])
@pytest.mark.parametrize("stage", HERE)
def test_a_job_whose_command_may_live_is_left_alone(here: Migrations, stage: Stage, mover: Mover | None) -> None:
    here.begin(record(stage, mover))
    node = Node(here)
    node.unsettled.look()
    told = node.recovered()
    assert (told.outcome, told.error) == ("under_way" if mover is ALIVE else "unsettled", None)
    assert (node.steps, here.all()) == ([], [record(stage, mover)])


@pytest.mark.parametrize(
    ("stage", "nodes"), [(Stage.GIVEN, "node-1 --to node-2"), (Stage.ARRIVING, "node-2 --to node-1")]
)
def test_a_job_that_another_node_has_or_decides_on_is_named(here: Migrations, stage: Stage, nodes: str) -> None:
    here.begin(record(stage))
    node = Node(here)
    node.unsettled.look()
    told = node.recovered()
    error = error_from_json(dict(told.error or {}))
    assert (told.outcome, error.code) == ("unsettled", "migration_unsettled")
    assert error.hint == told.command == f"gcr migrate llm --from {nodes} --recover"
    assert (node.steps, here.all()) == ([], [record(stage)])


def test_a_job_that_does_not_come_back_stays_kept_and_keeps_no_other_from_it(here: Migrations) -> None:
    here.begin(record(Stage.LEAVING, job="fails"))
    here.begin(record(Stage.LEAVING))
    node = Node(here, lambda step: isinstance(step, Run) and step.job == "fails")
    first, second = node.unsettled.of_all()
    assert (first.job, first.outcome, error_from_json(dict(first.error or {})).code) == (
        "fails",
        "unsettled",
        "no_room",
    )
    assert (second.job, second.outcome) == ("llm", "settled")
    assert [(each.job, each.stage) for each in here.all()] == [("fails", Stage.KEPT)]
    node.fails = lambda _step: False
    assert node.recovered().outcome == "settled"


def test_the_daemon_tries_each_once_by_itself_after_a_while(here: Migrations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 60.0)
    here.begin(record(Stage.LEAVING))
    node = Node(here, lambda step: isinstance(step, Run))
    for _ in range(2):
        node.unsettled.look()
    time.sleep(0.1)
    assert node.steps == []
    monkeypatch.setattr(module, "GRACE_S", 0.1)  # which is over
    node.unsettled.look()
    until(lambda: len(node.steps) == 2, 10.0, "the daemon tries")
    node.unsettled.look()
    time.sleep(0.1)
    assert [type(step) for step in node.steps] == [Move, Run]


def test_two_attempts_take_turns_and_the_second_finds_nothing_to_do(here: Migrations) -> None:
    here.begin(record(Stage.LEAVING))
    entered, go = threading.Event(), threading.Event()
    node = Node(here, lambda step: isinstance(step, Run) and (entered.set(), not go.wait(10))[1])
    node.unsettled.look()
    assert entered.wait(10)
    other = threading.Thread(target=node.recovered)
    other.start()
    time.sleep(0.1)
    assert [type(step) for step in node.steps] == [Move, Run]
    go.set()
    other.join(10)
    assert [type(step) for step in node.steps] == [Move, Run, Forget]


@pytest.mark.parametrize(
    ("stage", "mover", "end"),
    [
        (Stage.COPYING, ALIVE, "(copying)"),
        (Stage.LEAVING, GONE, "(leaving); its command has died: gcr recover brings it back here"),
        (Stage.LEAVING, ELSEWHERE, "(leaving); if its command has died: COMMAND"),
        (Stage.GIVEN, GONE, "(given); its command has died: COMMAND"),
        (Stage.ARRIVING, GONE, "(arriving); its command has died: COMMAND"),
    ],
)
def test_a_list_of_jobs_says_where_a_job_moves_and_what_to_do(stage: Stage, mover: Mover, end: str) -> None:
    moving = record(stage, mover)
    ways = ("node-2", "node-1") if stage is Stage.ARRIVING else ("node-1", "node-2")
    head = "llm is moving from {} to {}".format(*ways)
    assert migrating.said(moving) == f"{head} {end.replace('COMMAND', moving.command)}"
    assert migrating.row(moving)["mover"] == moving.fate


def test_a_record_that_is_damaged_hides_no_other(here: Migrations) -> None:
    here.begin(record(Stage.LEAVING))
    (here.folder / "broken.json").write_text("{")
    assert Node(here).recovered().outcome == "settled"
