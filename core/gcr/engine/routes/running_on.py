"""A checkpoint that leaves the program running: the copy alone stays of it.

    PREPARE · the parent's hashes · (live copy) · (room for a snapshot) · QUIESCE · drain · seal · gates open ·
    (the snapshot is read) · the copy is handed on · everything is taken back

No memory of the program is unmapped, and its control state is not touched. What the image before has as well is not
copied, so only the image's writer can use the copy (gcr.memory.partial).

Where the device has room, the copy of the cut goes no further than there (gcr.worker.snapshot), and to the host while
the program runs again. A copy is sealed before the gates open: it has the books of the cut, and survives the program.
"""

from collections.abc import Callable
from contextlib import ExitStack

from gcr.engine.plan import Plan, Step
from gcr.engine.steps.books import CloseBooksOfRunning
from gcr.engine.steps.compare import Baselines, Compare
from gcr.engine.steps.live import CopyLive
from gcr.engine.steps.prepare import Prepare, Reserve
from gcr.engine.steps.quiesce import Quiesce
from gcr.engine.steps.run_on import Copied, HandOn, Resume, Seal
from gcr.engine.steps.snapshot import DrainStanding, MakeRoom, ReadSnapshots
from gcr.engine.streaming import Stream, without_room
from gcr.engine.work import Work
from gcr.errors import NoRoom


def copy(work: Work, may_stop: Callable[[], object], baselines: Baselines, copied: Copied) -> None:
    """Copies what the parent image has not, and leaves the program running.

    It stands still from QUIESCE until the changes since a live copy, or since the parent, are in the arena or in a
    snapshot. Raises ImageFailed where another program needed the room of a snapshot.
    """
    with ExitStack() as occupying:
        seal = Seal(work)
        steps: list[Step] = [
            Prepare(work),
            Reserve(work, _refuse, may_stop),
            Compare(work, baselines),
            *([CopyLive(work)] if work.options.live else []),
            MakeRoom(work, occupying),
            Quiesce(work),
            CloseBooksOfRunning(work),
            DrainStanding(work),
            seal,
            Resume(work),
            ReadSnapshots(work, occupying),
            HandOn(seal, copied),
        ]
        Plan(work, steps).prepare().abort()


def _refuse(short: NoRoom) -> Stream:
    raise without_room(short, imaged=True, live=False, copies=False, stays=True)
