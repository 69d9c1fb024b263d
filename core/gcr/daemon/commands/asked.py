"""One command under way: its caller, and the way to tell the caller of progress."""

from collections.abc import Sequence
from threading import Event

from msgspec import Struct

from gcr.api.events import Listener
from gcr.daemon.permission import OURSELVES, Caller


class Asked(Struct, frozen=True):
    """`cancelled` is set when the caller leaves. `key`: descriptors of the key of an encrypted store, the caller's.

    who: the caller in words, as `ledger.asked_by` has them
    """

    progress: Listener
    cancelled: Event
    key: Sequence[int] = ()
    caller: Caller = OURSELVES
    who: str = "gcrd"
