"""A plan of steps: prepared, and then committed or given up."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gcr.engine.node import Course
from gcr.engine.plan import Plan
from gcr.engine.work import Options, Work
from gcr.errors import NoRoom, NotTakenBack, RolledBack, StandsStill


class Target(SimpleNamespace):
    """`forgotten`: how often its copy was closed."""

    def forget_copy(self):
        self.forgotten += 1


def target(pid=4711):
    return Target(pid=pid, process=SimpleNamespace(departed=False, state="handed_over"), forgotten=0)


@dataclass
class Step:
    """Says what is done; `fails` once it has begun."""

    name: str
    said: list[str]
    fails: Exception | None = None

    def do(self, undo):
        undo.push(self.name, lambda: self.said.append(f"un{self.name}"))
        self.said.append(self.name)
        if self.fails:
            raise self.fails


@dataclass
class Plans:
    """A plan of three steps, and what was done."""

    said: list[str] = field(default_factory=list)
    work: Work = field(default_factory=lambda: Work.of("llm", [target()], None, Course("checkpoint", 7, 60), Options()))

    def of(self, fails=None, undecided=None):
        names = ("export", "stop", "stage")
        steps = [Step(name, self.said, NoRoom("no", missing=1) if name == fails else None) for name in names]

        def decide():
            self.said.append("decide")
            if undecided:
                raise undecided

        return Plan(self.work, steps, decide, lambda: self.said.append("release"))

    @property
    def closed(self):
        return self.work.targets[0].forgotten


UNDONE = ["unstage", "unstop", "unexport"]


def test_what_was_prepared_waits_for_its_commit():
    made = Plans()
    prepared = made.of().prepare()
    assert (made.said, made.closed) == (["export", "stop", "stage"], 0)
    prepared.commit()
    assert (made.said[3:], made.closed) == (["decide", "release"], 1)


def test_what_was_prepared_is_given_up_last_step_first():
    made = Plans()
    made.of().prepare().abort()
    assert (made.said[3:], made.closed) == (UNDONE, 1)


def test_a_step_that_fails_takes_back_itself_and_those_before_it():
    made = Plans()
    with pytest.raises(NoRoom):
        made.of(fails="stop").prepare()
    assert (made.said, made.closed) == (["export", "stop", "unstop", "unexport"], 1)


def test_a_decision_that_cannot_be_written_takes_everything_back():
    made = Plans()
    with pytest.raises(RolledBack, match="disk"):
        made.of(undecided=RolledBack("the disk is full")).run()
    assert (made.said[3:], made.closed) == (["decide", *UNDONE], 1)


def test_after_the_decision_nothing_is_taken_back():
    made = Plans()

    def release():
        raise NoRoom("no", missing=1)

    plan = Plan(made.work, made.of().steps, lambda: None, release)
    with pytest.raises(NoRoom):
        plan.run()
    assert (made.said, made.closed) == (["export", "stop", "stage"], 1)


def commit_undecided(made):
    made.of(undecided=RolledBack("the disk is full")).prepare().commit()


@pytest.mark.parametrize(
    "ending",
    [
        lambda made: made.of(fails="stage").prepare(),
        lambda made: made.of().prepare().abort(),
        commit_undecided,
    ],
    ids=["a step fails", "abort", "no decision"],
)
def test_a_process_that_was_not_brought_back_is_told_of(ending):
    made = Plans()
    made.work.leftovers.suspended[4711] = NoRoom("short", missing=2 << 20)
    with pytest.raises(NotTakenBack, match=r"process 4711 cannot run on, 2\.0 MiB short"):
        ending(made)
    made = Plans()
    made.work.leftovers.out.add(4711)
    with pytest.raises(StandsStill, match="process 4711 stands still"):
        ending(made)
