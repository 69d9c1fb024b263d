"""Device memory of a process that is on its way here from another node: it is made and filled before the process comes.

    fit        the memory becomes that of the next image: what that one lacks is released, what is new is made
    inherit    the process is here: the memory is its own, and resident beside its copy until a restore takes it

In between the bytes come through a ring, as from any image (streaming.py). The caller knows which chunks lie there.
"""

from collections.abc import Sequence

from gcr.errors import NoRoom
from gcr.protocol.operations.coming import COMING
from gcr.worker.holdings import Holdings
from gcr.worker.hostcopy import HostCopy
from gcr.worker.residence import Residence
from gcr.worker.snapshot import spare_bytes


def fit(copy: HostCopy) -> Sequence[int]:
    """Returns the ids of handles that are held still, with what was copied to them before.

    Raises NoRoom where memory to be made would take room that is left to drivers; nothing is made then.
    """
    memory = copy.memory
    with copy.lock, memory.lock:
        copy.refuse_given_up()
        wanted = {spec.id: spec for spec in copy.handles()}
        memory.forget([id for id in memory.ids() if memory.specs[id] != wanted.get(id)])
        kept = memory.ids()
        lacking = [spec for id, spec in wanted.items() if id not in kept]
        missing = sum(spec.size for spec in lacking) - spare_bytes(memory.drain.memory())
        if lacking and missing > 0:
            raise NoRoom(f"the device is {missing} bytes short of what is coming", missing=missing)
        if lacking:
            memory.make(lacking)
        return kept


def inherit(holdings: Holdings, hold: str, copy: int, coming: str) -> int:
    """Makes the memory that came under the name `coming` that of a process. Returns its bytes, 0 where none is left.

    copy: the transaction of the copy from which the process comes back. Raises WrongState where the process holds some.
    """
    known = holdings.rename(coming, hold)
    if known is None:
        return 0
    known.forget_copy(COMING)
    memory = known.memory
    with memory.lock:
        memory.transfers.finish()
        if memory.ranges:
            memory.residence = Residence(copy, {*memory.ids()})
        return memory.bytes
