"""Transfers that were started, and may still read or write the memory that their keeper is about to release."""

from collections.abc import Sequence
from threading import Lock, RLock

from msgspec import Struct, field

from gcr.drain import Transfer

UNMAP_PATIENCE = 60.0  # a copy over the link always ends; unmapping under it would break the context


class InFlight(Struct):
    """The transfers of one piece of memory. The lock of that memory guards it."""

    transfers: list[Transfer] = field(default_factory=list)

    def began(self, transfers: Sequence[Transfer]) -> None:
        self.transfers.extend(transfers)

    def ended(self, transfers: Sequence[Transfer]) -> None:
        """Forgets transfers that a caller has waited for; `finish` may have forgotten them before."""
        over = {id(each) for each in transfers}
        self.transfers = [each for each in self.transfers if id(each) not in over]

    def finish(self) -> None:
        """Waits for all transfers. Raises DeadlinePassed, DriverError."""
        for transfer in self.transfers:
            transfer.wait(UNMAP_PATIENCE)
        self.transfers = []


class Use(Struct):
    """The use of one copy's memory. `lock` is taken before that of the process's memory, and `reading` inside `lock`.

    reading: held while threads hash the copy in the arena · given_up: nothing may be taken for the copy any more
    """

    lock: RLock = field(default_factory=RLock)
    reading: Lock = field(default_factory=Lock)
    transfers: InFlight = field(default_factory=InFlight)
    given_up: bool = False
