"""States of one model, and the moves between them; nothing else."""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """COLD: no job · READY: it answers · PARKED: its job is suspended, and takes no room from others · FAILED: it does
    not start, and is tried again later.
    """

    COLD = "cold"
    STARTING = "starting"
    READY = "ready"
    PARKING = "parking"
    PARKED = "parked"
    WAKING = "waking"
    FAILED = "failed"


class Event(StrEnum):
    """Events that move a model. KEPT: it could not be parked, and runs on; STAYED: it could not be woken."""

    START = "start"
    HEALTHY = "healthy"
    PARK = "park"
    PARKED = "parked"
    KEPT = "kept"
    WAKE = "wake"
    WOKEN = "woken"
    STAYED = "stayed"
    DIED = "died"
    RETRY = "retry"
    FOUND_RUNNING = "found_running"
    FOUND_PARKED = "found_parked"


class IllegalMove(Exception):
    """An event that cannot happen in this state: a bug in the pool."""


HOLDS_ROOM = frozenset({State.STARTING, State.READY, State.PARKING, State.WAKING})
CHANGING = frozenset({State.STARTING, State.PARKING, State.WAKING})
AWAY = frozenset({State.COLD, State.PARKED})

MOVES: Mapping[tuple[State, Event], State] = {
    (State.COLD, Event.START): State.STARTING,
    (State.COLD, Event.FOUND_RUNNING): State.STARTING,  # its health is yet to be seen
    (State.COLD, Event.FOUND_PARKED): State.PARKED,
    (State.STARTING, Event.HEALTHY): State.READY,
    (State.STARTING, Event.DIED): State.FAILED,
    (State.READY, Event.PARK): State.PARKING,
    (State.READY, Event.FOUND_PARKED): State.PARKED,  # by hand: `gcr checkpoint`
    (State.READY, Event.DIED): State.COLD,
    (State.PARKING, Event.PARKED): State.PARKED,
    (State.PARKING, Event.KEPT): State.READY,
    (State.PARKING, Event.DIED): State.COLD,
    (State.PARKED, Event.WAKE): State.WAKING,
    (State.PARKED, Event.FOUND_RUNNING): State.READY,  # by hand: `gcr restore`
    (State.PARKED, Event.DIED): State.COLD,
    (State.WAKING, Event.WOKEN): State.READY,
    (State.WAKING, Event.STAYED): State.PARKED,
    (State.WAKING, Event.DIED): State.COLD,
    (State.FAILED, Event.RETRY): State.COLD,
}


def moved(state: State, event: Event) -> State:
    """Raises IllegalMove."""
    try:
        return MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"{event} in state {state}") from None
