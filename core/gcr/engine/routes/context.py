"""A job that `--data-only` has suspended leaves its devices altogether: FREEZE, JOURNAL, COMMIT."""

from functools import partial

from gcr.engine.plan import Plan
from gcr.engine.steps.freeze_alone import FreezeAlone, decide, release
from gcr.engine.work import Work


def plan_of(work: Work) -> Plan:
    """Returns the plan. `work.decision` is the one that stands."""
    return Plan(work, [FreezeAlone(work)], partial(decide, work), partial(release, work))
