"""States of a process and of a job (docs/contract.md §2), and every legal move between them.

Pure: no I/O, no clock. `Process` alone records a state, and asks one of these functions first. A move that the table
does not list is a bug or a race and is refused. The edges of the way `whole`, forward; each has an undo edge back, but
for the two commits:

    running → prepared → quiesced → handed_over ─┬─→ frozen  ─┬─→ frozen_drained ═commit═▶ suspended
                                                 └─→ drained ─┘
    suspended → restoring ═commit═▶ running
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from gcr.errors import WrongState


class State(StrEnum):
    RUNNING = "running"
    PREPARED = "prepared"
    QUIESCED = "quiesced"
    HANDED_OVER = "handed_over"
    FROZEN = "frozen"  # control state is with the driver's checkpoint, data still on the device
    DRAINED = "drained"  # data is on the host, control state still live
    FROZEN_DRAINED = "frozen_drained"  # both, in whichever order; not committed yet
    SUSPENDED = "suspended"
    DATA_SUSPENDED = "data_suspended"
    RESTORING = "restoring"
    EXITED = "exited"
    LOST = "lost"


class Strategy(StrEnum):
    """The way in which the data of a process leaves its device."""

    HANDOFF = "handoff"
    COPYOUT = "copyout"  # its own agent copies
    DRIVER = "driver"


class Way(StrEnum):
    """The states that a process passes through: the rows of docs/contract.md §2."""

    WHOLE = "whole"
    DATA_ONLY = "data_only"
    DRIVER = "driver"
    RUNNING_ON = "running_on"


class IllegalMove(WrongState):
    """The job is in a state from which this cannot begin, found late; if it repeats, report it.

    The table has no such edge; nothing was done.
    """

    code = "illegal_move"


class Edge(Struct, frozen=True):
    """A legal move. `undo` names the edge that leads back, or is None where there is no way back."""

    name: str
    source: State
    target: State
    undo: str | None = None


AT_REST = frozenset({State.RUNNING, State.SUSPENDED, State.DATA_SUSPENDED, State.LOST})
"""No transaction is under way in these: a recovery leaves a process in one of them."""
HELD = frozenset(
    {
        State.HANDED_OVER,
        State.FROZEN,
        State.DRAINED,
        State.FROZEN_DRAINED,
        State.SUSPENDED,
        State.DATA_SUSPENDED,
        State.RESTORING,
    }
)
"""Something of the process lives outside it, so it can be lost."""

_S = State
_OPENING = (
    Edge("prepare", _S.RUNNING, _S.PREPARED, undo="forget"),
    Edge("forget", _S.PREPARED, _S.RUNNING),
    Edge("quiesce", _S.PREPARED, _S.QUIESCED, undo="reopen"),
    Edge("reopen", _S.QUIESCED, _S.PREPARED),  # the gate opens, exports stay
)
_HAND_OVER = (
    Edge("hand_over", _S.QUIESCED, _S.HANDED_OVER, undo="map_back"),
    Edge("map_back", _S.HANDED_OVER, _S.QUIESCED),
)
_DRAIN = (
    Edge("drain", _S.HANDED_OVER, _S.DRAINED, undo="discard_copy"),
    Edge("discard_copy", _S.DRAINED, _S.HANDED_OVER),
)
_FREEZE_BESIDE_DRAIN = (
    Edge("freeze", _S.HANDED_OVER, _S.FROZEN, undo="thaw"),
    Edge("thaw", _S.FROZEN, _S.HANDED_OVER),
    Edge("drain", _S.FROZEN, _S.FROZEN_DRAINED, undo="discard_copy"),
    Edge("discard_copy", _S.FROZEN_DRAINED, _S.FROZEN),
    Edge("freeze", _S.DRAINED, _S.FROZEN_DRAINED, undo="thaw"),
    Edge("thaw", _S.FROZEN_DRAINED, _S.DRAINED),
)
_FREEZE_LATER = (  # its commit is that of the way `whole`
    Edge("freeze", _S.DATA_SUSPENDED, _S.FROZEN_DRAINED, undo="thaw"),
    Edge("thaw", _S.FROZEN_DRAINED, _S.DATA_SUSPENDED),
)
_FREEZE_ALONE = (
    Edge("freeze", _S.RUNNING, _S.FROZEN, undo="thaw"),
    Edge("thaw", _S.FROZEN, _S.RUNNING),
)


def _coming_back(suspended: State) -> tuple[Edge, ...]:
    return (
        Edge("restore", suspended, _S.RESTORING, undo="suspend_again"),
        Edge("suspend_again", _S.RESTORING, suspended),
        Edge("commit_restore", _S.RESTORING, _S.RUNNING),
    )


_STEPS: Mapping[Way, tuple[Edge, ...]] = {
    Way.WHOLE: (
        *_OPENING,
        *_HAND_OVER,
        *_DRAIN,
        *_FREEZE_BESIDE_DRAIN,
        Edge("commit", _S.FROZEN_DRAINED, _S.SUSPENDED),
        *_coming_back(_S.SUSPENDED),
    ),
    Way.DATA_ONLY: (
        *_OPENING,
        *_HAND_OVER,
        *_DRAIN,
        Edge("commit", _S.DRAINED, _S.DATA_SUSPENDED),
        *_coming_back(_S.DATA_SUSPENDED),
        *_FREEZE_LATER,
    ),
    Way.DRIVER: (
        *_FREEZE_ALONE,
        Edge("commit", _S.FROZEN, _S.SUSPENDED),
        *_coming_back(_S.SUSPENDED),
    ),
    Way.RUNNING_ON: (
        *_OPENING,
        Edge("resume", _S.QUIESCED, _S.RUNNING),  # the gate opens for good: the copy is all that was wanted
    ),
}


def _with_ends(steps: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Adds the ends: a living process can exit, and one that is partly outside itself can be lost."""
    places = {place for edge in steps for place in (edge.source, edge.target)}
    losses = [Edge("lose", place, _S.LOST) for place in sorted(places & HELD)]
    living = places | {edge.target for edge in losses}
    return (*steps, *losses, *(Edge("exit", place, _S.EXITED) for place in sorted(living)))


EDGES: Mapping[Way, tuple[Edge, ...]] = MappingProxyType({way: _with_ends(steps) for way, steps in _STEPS.items()})
_BY_ENDS = {(way, e.source, e.target): e for way, edges in EDGES.items() for e in edges}
_BY_SOURCE = {(way, e.name, e.source): e for way, edges in EDGES.items() for e in edges}
_BY_TARGET = {(way, e.name, e.target): e for way, edges in EDGES.items() for e in edges if e.undo}


def edge(state: State, to: State, way: Way) -> Edge:
    """Returns the edge from `state` to `to`. Raises IllegalMove when there is none."""
    found = _BY_ENDS.get((Way(way), state, to))
    if found is None:
        raise IllegalMove(f"{state} → {to} is not a move of the way {way}", state=state)
    return found


def move(state: State, to: State, way: Way) -> State:
    """Returns the new state, which is `to`. Raises IllegalMove when the table has no such edge."""
    return edge(state, to, way).target


def after(state: State, step: str, way: Way) -> State:
    """Returns the state that a step leads to. Raises IllegalMove when no edge of that name begins at `state`."""
    found = _BY_SOURCE.get((Way(way), step, state))
    if found is None:
        raise IllegalMove(f"{step} does not begin at {state} in the way {way}", state=state)
    return found.target


def before(state: State, step: str, way: Way) -> State:
    """Returns the state that the undo of a step leads to; `state` itself where the step was not taken."""
    taken = _BY_TARGET.get((Way(way), step, state))
    return after(state, taken.undo, way) if taken and taken.undo else state


def settled(state: State, to: State) -> State:
    """Returns the state of a process about which a recovery, the journal or the process itself says that it is at `to`.

    An ended process stays ended. Raises IllegalMove where `to` is in the middle of a transaction.
    """
    if to not in AT_REST:
        raise IllegalMove(f"{to} is no state at rest", state=state)
    return state if state == State.EXITED else to


_ADVANCE = (_S.RUNNING, _S.PREPARED, _S.QUIESCED, _S.HANDED_OVER, _S.FROZEN, _S.DRAINED, _S.FROZEN_DRAINED)
_OFF = frozenset({_S.SUSPENDED, _S.DATA_SUSPENDED})


def job_state(states: Iterable[State]) -> State:
    """Returns the state of a job from those of its processes: never further than its slowest process.

    One lost process makes the job lost, unless all others are suspended: these can come back without it. Exited ones
    do not count while others live. A job that runs in part and is suspended in part is `restoring`: only a restore
    makes it whole. No process at all is `exited`.
    """
    living = set(states) - {_S.EXITED}
    if _S.LOST in living:
        return _S.SUSPENDED if living == {_S.LOST, _S.SUSPENDED} else _S.LOST
    return next(iter(living), _S.EXITED) if len(living) < 2 else _mixed(living)


def _mixed(states: set[State]) -> State:
    if _S.RESTORING in states or (states & _OFF and _S.RUNNING in states):
        return _S.RESTORING
    if {_S.FROZEN, _S.DRAINED} <= states and states.isdisjoint(_ADVANCE[:3]):
        return _S.HANDED_OVER  # neither step is done for the whole job
    moving = [state for state in _ADVANCE if state in states]
    return moving[0] if moving else next(s for s in (_S.DATA_SUSPENDED, _S.SUSPENDED) if s in states)
