"""A copy of parts of one running process's device memory, for a training checkpoint of its own.

    PREPARE of this process · where its spans lie · the worker copies them within the device · the exports are forgotten
    · (safe: the program may write) · the worker reads the copy to the arena

No gate is closed, and no other process is touched. The program must not write to the spans, nor free them, until they
are copied: it has asked, and waits for just that.
"""

from collections.abc import Sequence

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
from gcr.protocol.wire import AgentPhase

Span = tuple[int, int]  # address in the process, bytes
Piece = tuple[int, int, int]  # of a handle: its id, the offset, the bytes


class Aside(Struct, frozen=True):
    """The copy on one device. `sizes`: of the segments that it goes to."""

    worker: WorkerPeer
    sizes: Sequence[int]


class Parts(Struct, frozen=True):
    """Spans by the handles in which they lie, all of one device."""

    device: str
    pieces: Sequence[Piece]


def export(target: Target, undo: Transaction) -> None:
    """Exports the process's memory to its workers, and reads where it is mapped. The undo takes all back.

    Raises WrongState, UnsupportedState; PeerGone, DeadlinePassed.
    """
    if target.process.state != State.RUNNING:
        raise WrongState(f"process {target.pid} is {target.process.state}", state=target.process.state)
    refuse_stopped(target)
    if target.look().status.phase != AgentPhase.RUNNING:
        raise WrongState(f"process {target.pid} is in the middle of something; try again")
    undo.push("export", target.forget_memory)
    undo.push("prepare", lambda: run_on(target))
    target.process.way = Way.RUNNING_ON
    target.exports.choose_strategy()
    refuse_its_own_copy([target])
    target.exports.entrusts = False
    target.exports.export_new()
    target.process.move(State.PREPARED)
    target.read_mappings()
    target.books.close()


def run_on(target: Target) -> None:
    """Ends the agent's part."""
    if not target.process.ended:
        target.resume()
        target.process.take_back("prepare")


def parts_of(table: AllocationTable, spans: Sequence[Span]) -> Parts:
    """Returns where the spans lie, in their order.

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
    pieces = [(places[cut.piece].id, places[cut.piece].offset + cut.at, cut.size) for cut in cuts]
    return Parts(devices.pop(), pieces)


def copy_aside(target: Target, parts: Parts, limit: float) -> Aside:
    """Copies the parts within their device; the program may write when it returns. Raises NoRoom, RolledBack."""
    worker = target.worker(parts.device)
    return Aside(worker, worker.copies.set_aside(target.copy_name, target.owner, parts.pieces, limit))
