"""Events: the progress of a checkpoint, a restore or a swap while it is under way."""

from collections.abc import Callable
from typing import Any

from msgspec import to_builtins

from gcr.api.answers import Answer


class ProgressEvent(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """One phase of a job so far. Sizes are bytes, `left_s` seconds; a figure that is not known is not in the JSON.

    `link_share`: the rate, as a share of the links that are in use. `barrier`: where it waits for other nodes.
    """

    job: str = ""
    phase: str
    bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_s: float | None = None
    left_s: float | None = None
    link_share: float | None = None
    message: str | None = None
    barrier: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the body of a progress frame. Events have no mappings, and there are many of them."""
        found: dict[str, Any] = to_builtins(self)
        return found


Listener = Callable[[ProgressEvent], None]
