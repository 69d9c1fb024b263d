"""A checkpoint that leaves the program running: the copy alone stays of it.

    PREPARE · the parent's hashes · (live copy) · (room for a snapshot) · QUIESCE · drain · seal · gates open ·
    the exports are forgotten · (the snapshot is read) · the copy is handed on

No memory of the program is unmapped, and its control state is not touched. What the image before has as well is not
copied, so only the image's writer can use the copy (gcr.memory.partial).

Where the device has room, the copy of the cut goes no further than there (gcr.worker.snapshot), and to the host while
the program runs again (steps/behind.py). A copy is sealed before the gates open: it has the books of the cut, and
survives the program.
"""

from collections.abc import Callable

from gcr.engine.plan import Plan, Step
from gcr.engine.steps.behind import Behind
from gcr.engine.steps.books import CloseBooksOfRunning
from gcr.engine.steps.compare import Baselines, Compare
from gcr.engine.steps.live import CopyLive
from gcr.engine.steps.prepare import Prepare, Reserve
from gcr.engine.steps.quiesce import Quiesce
from gcr.engine.steps.run_on import Resume, Seal
from gcr.engine.steps.snapshot import DrainStanding, MakeRoom
from gcr.engine.streaming import Stream, without_room
from gcr.engine.transaction import Transaction
from gcr.engine.work import Work
from gcr.errors import NoRoom


def cut(work: Work, may_stop: Callable[[], object], baselines: Baselines) -> Behind:
    """Copies what the parent image has not, and leaves the program running. The caller must `finish` what it returns.

    The program stands still from QUIESCE until the changes since a live copy, or since the parent, are in the arena or
    in a snapshot.
    """
    behind = Behind(work, Seal(work), undo=Transaction(work.job))
    prepare = Prepare(work)
    steps: list[Step] = [
        prepare,
        Reserve(work, _refuse, may_stop),
        Compare(work, baselines),
        *([CopyLive(work)] if work.options.live else []),
        MakeRoom(work, behind.occupying),
        Quiesce(work),
        CloseBooksOfRunning(work),
        DrainStanding(work),
        behind.seal,
        Resume(work, prepare.running),
    ]
    with behind.undo.unless_it_fails():
        Plan(work, steps).prepare().abort()
    return behind


def _refuse(short: NoRoom) -> Stream:
    raise without_room(short, imaged=True, live=False, copies=False, stays=True)
