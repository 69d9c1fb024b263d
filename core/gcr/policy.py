"""Policies of `gcr serve`: which model gives up its room, and which one gets it. The built-in ones: gcr.serve.policies.

A policy computes and nothing else: it does no input or output, keeps no state, and answers within a millisecond.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Candidate(Struct, frozen=True, kw_only=True):
    """A model as policies see it. Times are seconds of one monotonic clock.

    bytes: device memory, None before that is known · active: requests that it answers now · waiting: requests that wait
    for it · since: when the oldest of these began to wait · uses: requests so far · wake_s: its last way back to the
    device took so long
    """

    name: str
    priority: int = 0
    bytes: int | None = None
    active: int = 0
    waiting: int = 0
    since: float | None = None
    last_used: float = 0.0
    uses: int = 0
    wake_s: float = 0.0


class Policy(Protocol):
    """One policy; `name` is what the configuration calls it."""

    name: str

    def leaves(self, candidates: Sequence[Candidate], demand: Candidate, now: float) -> Sequence[str]:
        """Returns names of candidates, the first to give up its room for `demand` first.

        A candidate that is left out keeps its room. Pinned models are no candidates. Idle ones and busy ones are asked
        about in separate calls; a busy one is parked after its last request.
        """

    def comes(self, waiting: Sequence[Candidate], now: float) -> Sequence[str]:
        """Returns the names of all that wait for room, the first to get it first."""
