"""Reports: what a checkpoint or a restore did, with the fields of the JSON that the command line prints.

Sizes are bytes, times seconds, rates bytes per second. None where the JSON has null.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import asdict


class ProcessReport(Struct, frozen=True, kw_only=True):
    """One process on one device."""

    pid: int
    device: str
    strategy: str
    bytes: int
    covered_bytes: int
    uncovered: Mapping[str, int]
    handles: int
    pinned_host_bytes: int
    contexts: int = 0

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        known = _known(cls, document)
        return cls(**{**known, "uncovered": MappingProxyType(dict(document["uncovered"]))})


class Report(Struct, frozen=True, kw_only=True):
    """Fields of both reports. `wall_s` is the caller's clock, all others are the daemon's."""

    job: str
    state: str
    bytes: int
    control_s: float | None
    wall_s: float
    simulated: bool

    def to_json(self) -> dict[str, Any]:
        """The JSON's fields, without the envelope."""
        return {name: _plain(value) for name, value in asdict(self).items()}


class CheckpointReport(Report, frozen=True, kw_only=True):
    strategy: str
    vram_free_s: float | None  # of a job that was left running
    stop_s: float
    drain_s: float
    drain_bytes_per_s: float | None
    link_bytes_per_s: float | None
    durable_s: float | None
    vram_after_bytes: int | None
    bytes_copied: int
    snapshot_bytes: int
    streamed: bool
    processes: Sequence[ProcessReport]
    image: str | None = None  # and of it, where it is durable:
    cut: str | None = None
    bytes_total: int | None = None
    bytes_changed: int | None = None
    bytes_zero: int | None = None
    bytes_written: int | None = None
    dedup_ratio: float | None = None
    parent: str | None = None
    parent_refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON's fields, without the envelope; those of an image where there is one."""
        found = super().to_json()
        return found if self.image else {name: value for name, value in found.items() if name not in _OF_AN_IMAGE}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        processes = tuple(ProcessReport.from_json(one) for one in document["processes"])
        return cls(**{**_known(cls, document), "processes": processes})


class RestoreReport(Report, frozen=True, kw_only=True):
    refill_s: float
    refill_bytes_per_s: float | None
    total_s: float
    cold: bool
    streamed: bool  # bytes came from an image window by window, and were nowhere whole in host memory
    moved: Mapping[str, str]  # devices by UUID: what it left, and where it came back instead

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{**_known(cls, document), "moved": MappingProxyType(dict(document["moved"]))})


class SwapReport(Struct, frozen=True, kw_only=True):
    """Reports of the job that left and of the one that came back. `wall_s` is the caller's clock."""

    out: CheckpointReport
    back: RestoreReport
    wall_s: float

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        out, back = CheckpointReport.from_json(document["out"]), RestoreReport.from_json(document["in"])
        return cls(out=out, back=back, wall_s=document["wall_s"])

    def to_json(self) -> dict[str, Any]:
        """The JSON's fields, without the envelope."""
        return {"out": self.out.to_json(), "in": self.back.to_json(), "wall_s": self.wall_s}


class ProcessInfo(Struct, frozen=True, kw_only=True):
    """A process of a job on one device; `device` is empty before its first allocation."""

    pid: int
    device: str
    state: str
    bytes: int
    covered_bytes: int

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**_known(cls, document))


class JobInfo(Struct, frozen=True, kw_only=True):
    """A job as `gcr ps` shows it. `started`: ISO 8601; `command`: empty for a process that gcr did not start."""

    job: str
    pid: int | None
    state: str
    started: str
    simulated: bool
    processes: tuple[ProcessInfo, ...]
    command: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of device data, all its processes together."""
        return sum(each.bytes for each in self.processes)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        processes = tuple(ProcessInfo.from_json(each) for each in document["processes"])
        command = tuple(document.get("command") or ())
        return cls(**{**_known(cls, document), "processes": processes, "command": command})


class ImageInfo(Struct, frozen=True, kw_only=True):
    """An image as `gcr images` lists it. `created`: seconds since the epoch. All else is None for one that is damaged.

    `damaged`: what is wrong with it, as far as a list looks.
    """

    image: str
    damaged: str | None
    job: str | None = None
    cut: str | None = None
    created: float | None = None
    backend: str | None = None
    simulated: bool | None = None
    processes: int | None = None
    bytes_total: int | None = None
    bytes_zero: int | None = None
    bytes_written: int | None = None
    parent: str | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**_known(cls, document))


_OF_AN_IMAGE = (
    "image",
    "cut",
    "bytes_total",
    "bytes_changed",
    "bytes_zero",
    "bytes_written",
    "dedup_ratio",
    "parent",
    "parent_refused",
)


def _known(kind: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """A newer daemon may say more than this library knows."""
    return {name: value for name, value in document.items() if name in kind.__struct_fields__}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, ProcessReport):
        return {name: _plain(one) for name, one in asdict(value).items()}
    return dict(value) if isinstance(value, Mapping) else value
