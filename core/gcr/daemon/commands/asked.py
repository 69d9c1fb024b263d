"""One command under way: its caller, and the way to tell the caller of progress."""

from collections.abc import Sequence
from threading import Event

from msgspec import Struct

from gcr.daemon.permission import OURSELVES, Caller
from gcr.peers.waiting import Progress


class Asked(Struct, frozen=True):
    """`cancelled` is set when the caller leaves. `key`: descriptors of the key of an encrypted store, the caller's."""

    progress: Progress
    cancelled: Event
    key: Sequence[int] = ()
    caller: Caller = OURSELVES
