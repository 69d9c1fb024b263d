"""A job comes back: room first, then data beside control state, then memory of others, then the same addresses, then
the gates.

Until every process is mapped and its data is back, a failure suspends the job again as it was: the arena is not touched
before the very end. Data from an image comes before the control state (engine/inflow.py).
"""

from functools import partial

from gcr.api.barriers import Barrier
from gcr.engine.plan import Plan, Step
from gcr.engine.restore import Restore
from gcr.engine.steps.barrier import Hold
from gcr.engine.steps.begin import Begin
from gcr.engine.steps.bring_back import BringBack
from gcr.engine.steps.foreign import GiveForeign, Join
from gcr.engine.steps.load import Load
from gcr.engine.steps.map import Map
from gcr.engine.steps.memory import MakeMemory
from gcr.engine.steps.open import decide, open_all
from gcr.engine.steps.reach import CheckReach


def plan_of(restore: Restore) -> Plan:
    steps: list[Step] = [
        Begin(restore),
        Join(restore),
        CheckReach(restore),
        MakeMemory(restore),
        *([Load(restore, restore.image)] if restore.image else []),
        BringBack(restore),
        GiveForeign(restore),
        Map(restore),
        Hold(restore.course, Barrier.READY),
    ]
    return Plan(restore, steps, partial(decide, restore), partial(open_all, restore))
