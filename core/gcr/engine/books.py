"""The books of one process in a transaction: its allocations, and the bytes that its devices count."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from gcr.devices import uuid_text
from gcr.job.tracking import NOTHING, AllocationTable, AllocationTracker, ReportedAllocations
from gcr.protocol.agentwire import MappingBatch


class Books(Struct):
    """The reported allocations, the table closed at the stop, and counts by device UUID."""

    reports: AllocationTracker = field(default_factory=lambda: ReportedAllocations(uuid_text))
    table: AllocationTable = NOTHING  # the memory to hand over; closed before that begins
    suspended: Mapping[str, int] = field(default_factory=dict)  # bytes by device, while its shim reports nothing
    counts: Mapping[str, int] = field(default_factory=dict)  # bytes by device, as the device counted at admission
    unexplained: dict[str, int] = field(default_factory=dict)  # bytes by device that no books explained at the start

    @property
    def bytes_by_device(self) -> Mapping[str, int]:
        return self.suspended or self.reports.bytes_by_device()

    @property
    def devices(self) -> list[str]:
        """The devices where the process has memory to carry, or, by the device's own count, a context."""
        return sorted({*self.bytes_by_device, *self.counts})

    def read(self, pages: Iterable[MappingBatch]) -> None:
        """Raises Contradiction."""
        for page in pages:
            self.reports.apply(page)

    def close(self) -> None:
        """Makes the table, before anything is released."""
        self.table = self.reports.table()
