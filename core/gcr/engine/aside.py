"""A copy of parts of one running process's device memory, for a training checkpoint of its own.

    PREPARE of this process · where its spans lie · the worker copies them within the device · (aside: the program runs
    on) · it reads those that were left in place · (safe: the program may write) · it reads the copy to the arena

The exports stand for the next save, which exports what was made since (`export_more`).

No gate is closed, and no other process is touched. The program must not write to a span, nor free it, until it is
copied aside or read: it has asked, and sees to that. It says which spans may be read in place, since it does not write
to them for a while.
"""

import time
from collections.abc import Collection, Sequence

from msgspec import Struct

from gcr.engine.admit import refuse_stopped
from gcr.engine.live import refuse_its_own_copy
from gcr.engine.target import Target
from gcr.engine.transaction import Transaction
from gcr.errors import UnsupportedState, WrongState
from gcr.job.states import State, Way
from gcr.job.tracking import AllocationTable
from gcr.memory.pieces import NotInPieces, Pieces
from gcr.peers.worker import WorkerPeer
from gcr.protocol.operations.worker import CopyName
from gcr.protocol.wire import AgentPhase

Span = tuple[int, int]  # address in the process, bytes
Piece = tuple[int, int, int, bool]  # of a handle: its id, the offset, the bytes, and whether to be read in place


class Aside(Struct, frozen=True):
    """The copy on one device. `sizes`: of the segments that it goes to. `in_place`: bytes that are left in place."""

    worker: WorkerPeer
    sizes: Sequence[int]
    in_place: int


class Parts(Struct, frozen=True):
    """Spans by the handles in which they lie, all of one device."""

    device: str
    pieces: Sequence[Piece]


def export(target: Target, undo: Transaction) -> float:
    """Exports the process's memory to its workers, and reads where it is mapped. The undo takes all back.

    Returns the seconds that the exports took.

    Raises WrongState, UnsupportedState; PeerGone, DeadlinePassed.
    """
    if target.process.state != State.RUNNING:
        raise WrongState(f"process {target.pid} is {target.process.state}", state=target.process.state)
    refuse_stopped(target)
    if target.look().status.phase != AgentPhase.RUNNING:
        raise WrongState(f"process {target.pid} is in the middle of something; try again")
    target.process.way = Way.RUNNING_ON
    target.exports.choose_strategy(counts=False)
    refuse_its_own_copy([target])
    target.exports.lends = True
    return export_more(target, undo)


def export_more(target: Target, undo: Transaction) -> float:
    """Exports what the process has made since its exports stand, and reads where all is mapped now. Raises the same."""
    refuse_stopped(target)
    undo.push("export", target.forget_memory)
    undo.push("prepare", lambda: run_on(target))
    began = time.monotonic()
    target.exports.export_new()
    refuse_its_own_copy([target])  # of what is new
    took_s = time.monotonic() - began
    target.process.move(State.PREPARED)
    target.books.reports.forget_mappings()
    target.read_mappings()
    target.books.close()
    return took_s


def runs_on(target: Target) -> None:
    """Notes that the process runs; its exports stand."""
    target.process.take_back("prepare")


def run_on(target: Target) -> None:
    """Ends the agent's part."""
    if not target.process.ended:
        target.resume()
        target.process.take_back("prepare")


def parts_of(table: AllocationTable, spans: Sequence[Span], in_place: Collection[int] = ()) -> Parts:
    """Returns where the spans lie, in their order. `in_place`: numbers of those that may be read in place.

    Raises UnsupportedState for bytes that are in no memory of the table, and for spans on several devices.
    """
    places = sorted(table.mappings(), key=lambda place: place.address)
    line = Pieces([place.address for place in places], [place.address + place.size for place in places])
    try:
        cuts = [*line.cuts(spans)]
    except NotInPieces as error:
        text = "a span lies in no device memory that this process has made and that can be exported"
        raise UnsupportedState(text) from error
    devices = {table.allocations[places[cut.piece].id].device for cut in cuts}
    if len(devices) != 1:
        raise UnsupportedState(f"the spans lie on {len(devices)} devices", hint="ask once for each device")
    stays = {*in_place}
    pieces = [(places[cut.piece].id, places[cut.piece].offset + cut.at, cut.size, cut.stretch in stays) for cut in cuts]
    return Parts(devices.pop(), pieces)


def copy_aside(target: Target, name: CopyName, parts: Parts, fills: bool, limit: float) -> Aside:
    """Copies the parts within their device; the program may write to those that must be copied when it returns.

    name: of the copy · fills: of those that may be read in place, as many are copied as there is room for

    Raises NoRoom, RolledBack.
    """
    worker = target.worker(parts.device)
    facts = worker.copies.set_aside(name, target.owner, parts.pieces, limit, fills)
    return Aside(worker, facts.sizes, facts.in_place)
