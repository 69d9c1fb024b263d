"""A plan: the steps of a checkpoint or a restore, in their order. A route (engine/routes) makes one.

    prepare()   every step; one that fails takes back those before it
    commit()    the decision, and what follows from it
    abort()     everything is taken back

Up to the decision each step pushes its undo before it begins; after it nothing is taken back any more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from msgspec import Struct

from gcr.engine.transaction import Transaction
from gcr.errors import RolledBack
from gcr.job.decisions import DecisionRecord


class Step(Protocol):
    """One step, for all processes of a job. Its undo is for one process, and also where the step was cut short."""

    def do(self, undo: Transaction) -> None:
        """Pushes its undo, and then begins."""
        ...


class Undertaking(Protocol):
    """The subject of a plan: a checkpoint (engine/work.py, engine/driver_swap.py) or a restore (engine/restore.py)."""

    @property
    def job(self) -> str: ...

    @property
    def decision(self) -> DecisionRecord | None:
        """The decision that stands."""
        ...

    def close(self) -> None:
        """Closes the daemon's own descriptors of what was copied."""
        ...

    def tell_what_is_left(self, error: Exception) -> None:
        """Raises another error where the failure `error` could not be undone for every process."""
        ...


def _nothing() -> None: ...


class Plan(Struct, frozen=True):
    """The steps up to the decision, the decision, and what follows from it. Programs that run on need none."""

    work: Undertaking
    steps: Sequence[Step]
    decide: Callable[[], object] = _nothing
    release: Callable[[], object] = _nothing

    @property
    def decision(self) -> DecisionRecord | None:
        return self.work.decision

    def prepare(self) -> "Prepared":
        """Does every step; the caller must commit or abort then.

        Raises what a step raises; NotTakenBack, StandsStill where that could not be taken back.
        """
        undo = Transaction(self.work.job)
        try:
            with _telling_what_is_left(self.work), undo.unless_it_fails():
                for step in self.steps:
                    step.do(undo)
        except BaseException:
            self.work.close()
            raise
        return Prepared(self, undo)

    def run(self) -> None:
        self.prepare().commit()


class Prepared(Struct, frozen=True):
    """Processes that have been through every step, with all of the way back."""

    plan: Plan
    undo: Transaction

    def commit(self) -> None:
        """Decides, and lets go of the devices. Raises RolledBack where no decision can be written."""
        work = self.plan.work
        try:
            with _telling_what_is_left(work):
                with self.undo:
                    self.plan.decide()
                    self.undo.commit()
                self.plan.release()
        finally:
            work.close()

    def abort(self) -> None:
        """Takes everything back. Raises NotTakenBack, StandsStill where a process does not run on."""
        work = self.plan.work
        try:
            self.undo.roll_back(None)
            work.tell_what_is_left(RolledBack("it was given up"))
        finally:
            work.close()


@contextmanager
def _telling_what_is_left(work: Undertaking) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        work.tell_what_is_left(error)
        raise
