"""What is known of the memory of one process in a transaction."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from gcr.devices import uuid_text
from gcr.job.tracking import NOTHING, AllocationTable, AllocationTracker, ReportedAllocations
from gcr.protocol.agentwire import MappingBatch


class Books(Struct):
    reports: AllocationTracker = field(default_factory=lambda: ReportedAllocations(uuid_text))
    table: AllocationTable = NOTHING  # of what is handed over; closed before it is
    suspended: Mapping[str, int] = field(default_factory=dict)  # bytes by device of one whose shim reports nothing now
    counts: Mapping[str, int] = field(default_factory=dict)  # by device UUID: bytes the device counted at admission
    unexplained: dict[str, int] = field(default_factory=dict)  # by device: what nobody's books explained at the start

    @property
    def bytes_by_device(self) -> Mapping[str, int]:
        return self.suspended or self.reports.bytes_by_device()

    @property
    def devices(self) -> list[str]:
        """Where it has memory that we carry, or, by the device's own count, something of the driver's alone."""
        return sorted({*self.bytes_by_device, *self.counts})

    def close(self, pages: Iterable[MappingBatch]) -> None:
        """Reads the last of the books, before anything is released. Raises Contradiction."""
        for page in pages:
            self.reports.apply(page)
        self.table = self.reports.table()
