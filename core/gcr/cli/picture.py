"""The contents of `gcr inspect` for each way of drawing: facts, and sections of bars with their figures."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from gcr import units
from gcr.cli import text
from gcr.image.files.anatomy import bytes_by_device, origins, phases, size_classes, stop_s
from gcr.image.files.manifest import Manifest

PARTS = {
    "zero": "zero, stored nowhere",
    "repeated": "more than once in this image",
    "shared": "shared, stored before",
    "written": "written for this image",
}


class Figure(Struct, frozen=True):
    """A number as `--json` has it, and as people read it."""

    value: float
    text: str


class Row(Struct, frozen=True):
    """A bar from `begin` to `end` of `whole`, what it amounts to, and what is said beside it.

    `kind`: of PARTS, which make up a whole, or `changed`, or nothing.
    """

    kind: str
    name: str
    begin: float
    end: float
    whole: float
    aside: Figure
    amount: Figure


class Section(Struct, frozen=True):
    name: str
    total: Figure
    rows: Sequence[Row]


def made(manifest: Manifest) -> str:
    return datetime.fromtimestamp(manifest.created).strftime("%Y-%m-%d %H:%M:%S")


def facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "cut", manifest.cut.value
    if progress := manifest.source.progress:
        saved = ", ".join(f"{name} {number:,}" for name, number in progress.items())
        yield "training", f"{saved} ({manifest.source.backend})"
    else:
        pids = ", ".join(str(each.table.pid) for each in manifest.processes)
        yield "processes", f"{pids} ({manifest.source.backend})"
    for device, size in bytes_by_device(manifest).items():
        yield "device", f"{manifest.source.models.get(device, '?')}, {device}: {units.size(size)}"
    yield "parent", manifest.costs.parent or "none"
    if (stood := stop_s(manifest)) is not None:
        yield "stopped for", _shown(stood)
    yield "written by", ", ".join(f"{name} {version}" for name, version in manifest.source.versions.items())


def sections(manifest: Manifest, repeated: int) -> Sequence[Section]:
    found = (_bytes(manifest, repeated), _timeline(manifest), _sizes(manifest))
    return [section for section in found if section]


def _sizes(manifest: Manifest) -> Section:
    classes = size_classes(manifest)
    most = max((each.bytes for each in classes), default=0)
    rows = [
        Row("", f"up to {units.size(each.limit)}", 0, each.bytes, most, _count(each.count), _bytes_of(each.bytes))
        for each in classes
    ]
    return Section("Allocations", _count(sum(each.count for each in classes)), rows)


def _bytes(manifest: Manifest, repeated: int) -> Section:
    total = manifest.costs.bytes_total
    named = [(kind, PARTS[kind], size) for kind, size in origins(manifest, repeated).items()]
    if manifest.costs.bytes_changed is not None:
        named.append(("changed", f"changed since {manifest.costs.parent}", manifest.costs.bytes_changed))
    rows = [
        Row(kind, name, 0, size, total, _share(size, total), _bytes_of(size)) for kind, name, size in named if total
    ]
    return Section("Bytes", _bytes_of(total), rows)


def _timeline(manifest: Manifest) -> Section | None:
    found = phases(manifest)
    end = max((phase.end for phase in found), default=0.0)
    rows = [
        Row("", each.name, each.begin, each.end, end, _after(each.begin), _seconds(each.end - each.begin))
        for each in found
    ]
    return Section("Checkpoint", _seconds(end), rows) if found else None


def _count(number: int) -> Figure:
    return Figure(number, f"{number:,}")


def _bytes_of(size: int) -> Figure:
    return Figure(size, units.size(size))


def _share(size: int, total: int) -> Figure:
    return Figure(size / total, text.percent(size / total))


def _seconds(value: float) -> Figure:
    return Figure(value, _shown(value))


def _after(value: float) -> Figure:
    return Figure(value, f"at {_shown(value)}")


def _shown(value: float) -> str:
    """Most steps take milliseconds."""
    return text.seconds(value) if value >= 0.1 else f"{1000 * value:.0f} ms"
