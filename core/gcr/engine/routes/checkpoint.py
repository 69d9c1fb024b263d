"""A job leaves its devices: PREPARE, QUIESCE, HAND OVER, FREEZE beside DRAIN, STAGE, JOURNAL, COMMIT (docs/design.md).

A live one copies everything between PREPARE and QUIESCE, while the program runs, and drains what has changed since. One
without room on the host streams its bytes to an image (engine/streaming.py). Processes that no worker can copy copy
themselves (engine/steps/copy_out.py). One that is a part of a cut over several nodes waits for the others twice, and
with an image a third time, mostly after the decision (engine/part.py).
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from gcr.api.barriers import Barrier
from gcr.engine.plan import Plan, Step
from gcr.engine.progress import Meter
from gcr.engine.steps.barrier import Hold, HoldStill
from gcr.engine.steps.books import CloseBooks
from gcr.engine.steps.compare import Baselines, Compare
from gcr.engine.steps.copy_out import CopyOut
from gcr.engine.steps.decide import decide
from gcr.engine.steps.freeze_and_drain import Beside, FreezeAndDrain
from gcr.engine.steps.hand_over import HandOver
from gcr.engine.steps.image import AwaitImages, Held, KeepImage, WriteBehind, WriteOut
from gcr.engine.steps.live import CopyLive
from gcr.engine.steps.prepare import Prepare, Reserve
from gcr.engine.steps.quiesce import Quiesce
from gcr.engine.steps.release import release
from gcr.engine.steps.resident import RefuseToStay
from gcr.engine.steps.run_on import Copied
from gcr.engine.steps.stage import Lend, Stage
from gcr.engine.streaming import Outlet, Stream, without_room
from gcr.engine.work import Work
from gcr.errors import NoRoom


class Upon(Struct, frozen=True):
    """The parent of the image that a live checkpoint goes into: its hashes, and the taker of the copies."""

    baselines: Baselines
    copied: Copied


def plan_of(
    work: Work,
    may_stop: Callable[[], object] = lambda: None,
    outlet: Outlet | None = None,
    beside: Beside | None = None,
    upon: Upon | None = None,
    held: Held | None = None,
) -> Plan:
    """Returns the plan. `outlet`: where the bytes go that the host has no room for; without one NoRoom is raised.

    may_stop: asked before anything stops; raises what speaks against it · beside: begins with the drain
    upon: with it an image is spared the names of the bytes that its parent has · held: the image has the processes, too
    """
    meter = Meter(work.course, "draining", {})
    behind_the_gates: list[Step] = [CloseBooks(work, meter), RefuseToStay(work)]
    steps: list[Step] = [
        KeepImage(work),
        Prepare(work),
        RefuseToStay(work),
        Reserve(work, partial(_stream, work, outlet), may_stop),
        *([Compare(work, upon.baselines, whole=True)] if upon else []),
        *([CopyLive(work)] if work.options.live else []),
        Hold(work.course, Barrier.ADMITTED),
        Quiesce(work),
        *behind_the_gates,
        HoldStill(work, behind_the_gates),
        CopyOut(work, meter),
        HandOver(work),
        FreezeAndDrain(work, meter, beside),
        Stage(work),
        *([Lend(work, upon.copied)] if upon else []),
        *([WriteBehind(work, held)] if held else []),
        WriteOut(work),
        AwaitImages(work),
    ]
    return Plan(work, steps, partial(decide, work), partial(release, work))


def _stream(work: Work, outlet: Outlet | None, short: NoRoom) -> Stream:
    """Returns the way without room for all. Raises NoRoom where there is none either."""
    live, copies = work.options.live, any(target.process.copied_out for target in work.targets)
    if outlet is None or live or copies:
        raise without_room(short, outlet is not None, live, copies)
    stream = Stream(outlet, work.course, work.node.config.slot_bytes, work.node.config.drain_s)
    stream.reserve(work.targets)
    message = f"{short.message}: straight to the image, through {stream.ring_bytes >> 20} MiB"
    work.course.tell("streaming", message)
    return stream
