"""Resident memory: device memory of a suspended process that is on the device while there is room for it.

A copy in host memory has every byte of it, and that copy is decided. So resident memory is the faster of two ways
back, and never the only one: it may be released at any time, and goes with its worker.

    stay        after the decision of a checkpoint: all of the memory
    ahead       memory that is made and refilled before the restore: a part of it, or all (ahead.py)
    claim       a restore takes it, and makes the rest; it cannot be evicted from then on
    unclaim     the restore was taken back; it is resident as before
    evict       another process needs the room
"""

import time

from msgspec import Struct, field


class Residence(Struct):
    """`copy`: the transaction of the copy with the same bytes · `since`: time.monotonic(); all workers share its clock.

    filled: ids of handles that are held with these bytes; what else is held is being refilled
    """

    copy: int
    filled: set[int] = field(default_factory=set)
    since: float = field(default_factory=time.monotonic)
    claimed: bool = False
