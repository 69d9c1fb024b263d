"""States of a process and of a job (docs/contract.md §2), and every legal move between them.

Pure: no I/O, no clock. The engine asks `move` before it records a state; whatever the table does not list is a bug or a
race and is refused. The edges of strategy `handoff`, forward; each has an undo edge back, but for the two commits:

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
    STOPPED = "stopped"
    EXITED = "exited"
    LOST = "lost"


class Strategy(StrEnum):
    HANDOFF = "handoff"
    DATA_ONLY = "data_only"
    DRIVER = "driver"
    LIVE = "live"


class IllegalMove(WrongState):
    """The table has no such edge; nothing was done."""

    code = "illegal_move"


class Edge(Struct, frozen=True):
    """A legal move. `undo` names the edge that leads back, or is None where there is no way back."""

    name: str
    source: State
    target: State
    undo: str | None = None


ENDS = frozenset({State.STOPPED, State.EXITED, State.LOST})
"""Nothing leads out of these."""
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
_FORGET = Edge("forget", _S.PREPARED, _S.RUNNING)
_RESUME = Edge("resume", _S.QUIESCED, _S.RUNNING)  # the gate opens and the transaction is over
_REOPEN = Edge("reopen", _S.QUIESCED, _S.PREPARED)  # the gate opens, exports stay
_OPENING = (
    Edge("prepare", _S.RUNNING, _S.PREPARED, undo="forget"),
    _FORGET,
    Edge("quiesce", _S.PREPARED, _S.QUIESCED, undo="reopen"),
    _REOPEN,
    _RESUME,
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
    Edge("drain_frozen", _S.FROZEN, _S.FROZEN_DRAINED, undo="discard_copy_frozen"),
    Edge("discard_copy_frozen", _S.FROZEN_DRAINED, _S.FROZEN),
    Edge("freeze_drained", _S.DRAINED, _S.FROZEN_DRAINED, undo="thaw_drained"),
    Edge("thaw_drained", _S.FROZEN_DRAINED, _S.DRAINED),
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


_STEPS: Mapping[Strategy, tuple[Edge, ...]] = {
    Strategy.HANDOFF: (
        *_OPENING,
        *_HAND_OVER,
        *_DRAIN,
        *_FREEZE_BESIDE_DRAIN,
        Edge("commit", _S.FROZEN_DRAINED, _S.SUSPENDED),
        *_coming_back(_S.SUSPENDED),
        Edge("stop", _S.SUSPENDED, _S.STOPPED),
    ),
    Strategy.DATA_ONLY: (
        *_OPENING,
        *_HAND_OVER,
        *_DRAIN,
        Edge("commit", _S.DRAINED, _S.DATA_SUSPENDED),
        *_coming_back(_S.DATA_SUSPENDED),
    ),
    Strategy.DRIVER: (
        *_FREEZE_ALONE,
        Edge("commit", _S.FROZEN, _S.SUSPENDED),
        *_coming_back(_S.SUSPENDED),
        Edge("stop", _S.SUSPENDED, _S.STOPPED),
    ),
    Strategy.LIVE: _OPENING,
}


def _with_ends(steps: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Adds the ends: a living process can exit, and one that is partly outside itself can be lost."""
    places = {place for edge in steps for place in (edge.source, edge.target)} - ENDS
    exits = (Edge("exit", place, _S.EXITED) for place in sorted(places))
    losses = (Edge("lose", place, _S.LOST) for place in sorted(places & HELD))
    return (*steps, *exits, *losses)


EDGES: Mapping[Strategy, tuple[Edge, ...]] = MappingProxyType(
    {strategy: _with_ends(steps) for strategy, steps in _STEPS.items()}
)
_BY_ENDS = {(strategy, e.source, e.target): e for strategy, edges in EDGES.items() for e in edges}


def edge(state: State, to: State, strategy: Strategy) -> Edge:
    """The edge from `state` to `to`. Raises IllegalMove when there is none."""
    found = _BY_ENDS.get((Strategy(strategy), state, to))
    if found is None:
        raise IllegalMove(f"{state} → {to} is not a move of strategy {strategy}", state=state)
    return found


def move(state: State, to: State, strategy: Strategy) -> State:
    """The new state, which is `to`. Raises IllegalMove when the table has no such edge."""
    return edge(state, to, strategy).target


_ADVANCE = (_S.RUNNING, _S.PREPARED, _S.QUIESCED, _S.HANDED_OVER, _S.FROZEN, _S.DRAINED, _S.FROZEN_DRAINED)
_AT_REST = frozenset({_S.SUSPENDED, _S.DATA_SUSPENDED})


def job_state(states: Iterable[State]) -> State:
    """The state of a job from those of its processes: never further than its slowest process.

    One lost process makes the job lost. Exited ones do not count while others live. A job that runs in part and is
    suspended in part is `restoring`: only a restore makes it whole. No process at all is `exited`.
    """
    present = set(states)
    if _S.LOST in present:
        return _S.LOST
    living = present - {_S.EXITED}
    return next(iter(living), _S.EXITED) if len(living) < 2 else _mixed(living)


def _mixed(states: set[State]) -> State:
    if _S.RESTORING in states or (states & _AT_REST and _S.RUNNING in states):
        return _S.RESTORING
    if {_S.FROZEN, _S.DRAINED} <= states and states.isdisjoint(_ADVANCE[:3]):
        return _S.HANDED_OVER  # neither step is done for the whole job
    moving = [state for state in _ADVANCE if state in states]
    return moving[0] if moving else next(s for s in (_S.DATA_SUSPENDED, _S.SUSPENDED, _S.STOPPED) if s in states)
