"""Carries out a migration: one order after the other, until it is over, and the report."""

import logging
import time

from msgspec import Struct

from gcr.api.events import ProgressEvent
from gcr.api.migrations import MigrationReport, RoundReport, StopReport
from gcr.errors import GcrError, Interrupted, Refused, typed
from gcr.faults import reach
from gcr.migration import rounds
from gcr.migration.coordination import Coordination
from gcr.migration.messages import Finish, Heard, Order, Outcome, Task
from gcr.migration.steps import Course, Steps
from gcr.migration.ways import Between, is_silent
from gcr.migrationerrors import MigrationFailed, MigrationUnsettled

log = logging.getLogger(__name__)


class Result(Struct, frozen=True):
    """The report of a migration, and its error: None where it was done."""

    report: MigrationReport
    error: GcrError | None


def migrate(between: Between) -> Result:
    """Moves the job. Raises nothing: the result has the error."""
    steps = Steps(between)
    return _carried_out(steps, Coordination(Task.MIGRATE, lambda: rounds.is_worth_another(steps.course.rounds)))


def recover(between: Between) -> Result:
    """Settles a migration after its coordinator has died. Raises NoSuchMigration, CannotMigrate, and a node's error."""
    steps = Steps(between)
    steps.learn()
    return _carried_out(steps, Coordination(Task.RECOVER))


def _carried_out(steps: Steps, coordination: Coordination) -> Result:
    step = coordination.start()
    while not isinstance(step, Finish):
        heard = _heard(steps, step)
        log.info("migration %s: %s: %s", steps.course.id, step, heard)
        step = coordination.on(heard)
    return Result(_report(steps, step.outcome), _error(steps, step.outcome))


def _heard(steps: Steps, order: Order) -> Heard:
    """Takes a step, and returns its end."""
    between, course = steps.between, steps.course
    between.source.hear(ProgressEvent(job=between.job, phase=order.value))
    try:
        reach(f"migrate.{order}")
        heard = steps.by_order()[order]()
        reach(f"migrate.{order}.done")
        return heard
    except KeyboardInterrupt:
        course.interrupted = True
        between.source.link.close()  # has the daemons take back what is under way
        between.target.link.close()
        return Heard.LOST
    except Exception as failure:
        error = typed(failure)
        log.info("migration %s: %s: %s", course.id, order, error.message, exc_info=True)
        course.errors.append((order, error))
        return Heard.LOST if is_silent(error) else Heard.FAILED


def _report(steps: Steps, outcome: Outcome) -> MigrationReport:
    course, between = steps.course, steps.between
    stop = None
    if "running" in course.phases:
        phases = dict(sorted(course.phases.items(), key=lambda mark: mark[1]))
        stop = StopReport(
            stop_s=course.phases["running"],
            phases_s=phases,
            filled_bytes=steps.filler.bytes,
            not_filled=steps.filler.refused,
        )
    return MigrationReport(
        job=between.job,
        id=course.id,
        outcome=outcome.value,
        source=between.source.name,
        target=between.target.name,
        simulated=bool(steps.facts and steps.facts.world.simulated),
        rounds=_rounds(course),
        bytes_sent=course.sent,
        stop=stop,
        moved={old: new for old, new in course.moves.items() if old != new},
        left_over=tuple(f"{order}: {error.message}" for order, error in course.errors if order in _TIDYING),
        wall_s=time.monotonic() - course.began,
    )


def _rounds(course: Course) -> tuple[RoundReport, ...]:
    return tuple(
        RoundReport(
            bytes_sent=each.bytes_sent,
            copy_s=each.copy_s,
            pull_s=each.pull_s,
            paid=rounds.paid(course.rounds, number),
            host_bytes=each.host_bytes,
        )
        for number, each in enumerate(course.rounds)
    )


def _error(steps: Steps, outcome: Outcome) -> GcrError | None:
    if outcome is Outcome.DONE:
        return None
    job, source, errors = steps.between.job, steps.between.source.name, steps.course.errors
    if outcome is Outcome.UNSETTLED:
        why = f"{errors[-1][0]}: {errors[-1][1].message}" if errors else "another recovery has settled it"
        text = f"{why}; job {job} runs at most once, and may be in its images alone"
        return MigrationUnsettled(text, hint=f"gcr migrate {job} --recover, with both nodes")
    if steps.course.interrupted:
        return Interrupted(f"interrupted; job {job} runs at {source}")
    order, cause = errors[0] if errors else (Order.KEEP, None)
    if isinstance(cause, Refused) and order in _BEFORE_THE_STOP:
        return cause
    why = f"{order}: {cause.message}" if cause else "it was given up"
    return MigrationFailed(f"{why}; job {job} runs at {source}", hint=cause.hint if cause else "")


_TIDYING = (Order.FORGET, Order.ABANDON)
_BEFORE_THE_STOP = (Order.ADMIT, Order.BEGIN, Order.COPY, Order.LEAVE)
