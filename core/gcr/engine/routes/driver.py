"""A process that gcr did not start leaves its device by the driver alone, and comes back.

Its decision is written before the driver is asked, and forgotten when the process runs again.
"""

from functools import partial

from gcr.engine.driver_swap import DriverSwap
from gcr.engine.plan import Plan
from gcr.engine.steps.by_driver import Admit, FreezeWhole, Record, ThawWhole, running, suspended
from gcr.job.moves import Moves


def checkpoint_of(swap: DriverSwap) -> Plan:
    return Plan(swap, [Admit(swap), Record(swap), FreezeWhole(swap)], release=partial(suspended, swap))


def restore_of(swap: DriverSwap, moves: Moves) -> Plan:
    return Plan(swap, [ThawWhole(swap, moves)], release=partial(running, swap))
