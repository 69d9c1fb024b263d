"""Reports: what a checkpoint or a restore did, with the fields of the JSON that the command line prints.

The daemon makes them; the command line and the library add `wall_s`, by their own clock. All other times are the
daemon's. Sizes are bytes, times seconds, rates bytes per second; None is null.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from msgspec import field
from msgspec.structs import replace

from gcr.api.answers import Answer


class ProcessReport(Answer, frozen=True, kw_only=True):
    """One process on one device; `device` is empty before its first allocation."""

    pid: int
    state: str
    strategy: str
    device: str
    bytes: int
    covered_bytes: int
    uncovered: Mapping[str, int]
    handles: int
    pinned_host_bytes: int
    contexts: int


class Report(Answer, frozen=True, kw_only=True):
    """The fields that a checkpoint's and a restore's report have in common."""

    job: str
    simulated: bool
    state: str
    if TYPE_CHECKING:  # fields of each report, at a place of their own in its JSON
        bytes: int
        control_s: float | None
        link_bytes_per_s: float | None
        streamed: bool
        phases_s: Mapping[str, float]
        wall_s: float

    def timed(self, wall_s: float) -> Self:
        """Returns the report with the time by the clock of its caller."""
        return replace(self, wall_s=wall_s)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope and without those that do not apply."""
        absent = self._absent()
        return {name: value for name, value in super().to_json().items() if name not in absent}

    def _absent(self) -> Collection[str]:
        return [name for name in ("phases_s", "wall_s") if not getattr(self, name)]


class CheckpointReport(Report, frozen=True, kw_only=True):
    """A checkpoint. `phases_s`: the end of each phase, in seconds from the request; empty where the driver did it.

    resident_bytes: those that stay on their devices until another program needs the room
    host_bytes: of the host memory of a job that moves, in the image of a round
    """

    strategy: str
    bytes: int
    bytes_copied: int
    snapshot_bytes: int
    streamed: bool
    vram_free_s: float | None  # None if the job runs on, or if its memory stays resident
    stop_s: float
    drain_s: float
    drain_bytes_per_s: float | None
    control_s: float | None
    link_bytes_per_s: float | None
    durable_s: float | None
    vram_after_bytes: int | None
    resident_bytes: int = 0
    processes: tuple[ProcessReport, ...]
    phases_s: Mapping[str, float] = field(default_factory=dict)
    image: str | None = None  # and of it, where it is durable:
    cut: str | None = None
    parent: str | None = None
    bytes_total: int | None = None
    bytes_changed: int | None = None
    bytes_zero: int | None = None
    bytes_written: int | None = None
    dedup_ratio: float | None = None
    parent_refused: str | None = None
    host_bytes: int = 0
    wall_s: float = 0.0

    def _absent(self) -> Collection[str]:
        return [*super()._absent(), *(() if self.image else _OF_AN_IMAGE), *(() if self.host_bytes else ["host_bytes"])]


class Refill(Report, frozen=True, kw_only=True):
    """The bytes that came back, and their rates."""

    bytes: int
    refill_s: float
    refill_bytes_per_s: float | None
    control_s: float | None
    link_bytes_per_s: float | None


class RestoreReport(Refill, frozen=True, kw_only=True):
    """A restore. `phases_s`: as of a checkpoint. `resident_bytes`: those that were on their devices still.

    processes_s: of a job that was stopped, how its processes came back before: the end of each phase, in seconds from
    the command's begin
    without: pids that the driver did not give back, and that were ended
    """

    total_s: float
    cold: bool
    streamed: bool  # bytes came from an image window by window, and were nowhere whole in host memory
    resident_bytes: int = 0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    moved: Mapping[str, str]  # devices by UUID: what it left, and where it came back instead
    processes_s: Mapping[str, float] = field(default_factory=dict)
    without: tuple[int, ...] = ()
    wall_s: float = 0.0

    def _absent(self) -> Collection[str]:
        return [*super()._absent(), *(name for name in ("processes_s", "without") if not getattr(self, name))]


class SwapReport(Answer, frozen=True, kw_only=True):
    """Reports of the job that left and of the one that came back. `wall_s` is the caller's clock."""

    out: CheckpointReport
    back: RestoreReport = field(name="in")
    wall_s: float = 0.0

    def timed(self, wall_s: float) -> Self:
        """Returns the report with the time by the clock of its caller."""
        return replace(self, wall_s=wall_s)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope."""
        timed = {"wall_s": self.wall_s} if self.wall_s else {}
        return {"out": self.out.to_json(), "in": self.back.to_json(), **timed}


TransferReport = CheckpointReport | RestoreReport


_OF_AN_IMAGE = (
    "image",
    "cut",
    "parent",
    "bytes_total",
    "bytes_changed",
    "bytes_zero",
    "bytes_written",
    "dedup_ratio",
    "parent_refused",
)
