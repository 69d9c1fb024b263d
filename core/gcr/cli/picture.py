"""The contents of `gcr inspect` for each way of drawing: facts, and sections of bars with their figures.

Here is the picture of an image; runpicture.py has that of a run.
"""

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

    `kind`: of PARTS, or `changed`, or nothing.
    rest: where a second bar ends, which begins at `end` · between: one more figure, before the amount
    """

    kind: str
    name: str
    begin: float
    end: float
    whole: float
    aside: Figure
    amount: Figure
    rest: float | None = None
    between: Figure | None = None


class Section(Struct, frozen=True):
    """`note`: says what the figures of a row are, where that is not plain.

    is_whole: the rows with a kind of PARTS make up a whole
    """

    name: str
    total: Figure
    rows: Sequence[Row]
    note: str = ""
    is_whole: bool = False


class Picture(Struct, frozen=True):
    """A thing to be drawn, an image or a run. `about`: in words, beside its name."""

    kind: str
    name: str
    about: str
    is_simulated: bool
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def of_image(manifest: Manifest, repeated: int, more: Sequence[tuple[str, str]] = ()) -> Picture:
    """`repeated`: bytes of chunks that the image has more than once. `more`: facts that are not in the manifest."""
    source = manifest.source
    about = f"of job {source.job}, {when(manifest.created)}"
    drawn = [*_facts(manifest), *more], _sections(manifest, repeated)
    return Picture("image", manifest.name, about, source.simulated, *drawn)


def when(seconds: float) -> str:
    """`seconds`: since the epoch."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
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
        yield "stopped for", shown(stood)
    yield "written by", ", ".join(f"{name} {version}" for name, version in manifest.source.versions.items())


def _sections(manifest: Manifest, repeated: int) -> Sequence[Section]:
    found = (_bytes(manifest, repeated), _timeline(manifest), _sizes(manifest))
    return [section for section in found if section]


def _sizes(manifest: Manifest) -> Section:
    classes = size_classes(manifest)
    most = max((each.bytes for each in classes), default=0)
    rows = [
        Row("", f"up to {units.size(each.limit)}", 0, each.bytes, most, count(each.count), bytes_of(each.bytes))
        for each in classes
    ]
    return Section("Allocations", count(sum(each.count for each in classes)), rows)


def _bytes(manifest: Manifest, repeated: int) -> Section:
    total = manifest.costs.bytes_total
    named = [(kind, PARTS[kind], size) for kind, size in origins(manifest, repeated).items()]
    if manifest.costs.bytes_changed is not None:
        named.append(("changed", f"changed since {manifest.costs.parent}", manifest.costs.bytes_changed))
    rows = [Row(kind, name, 0, size, total, share(size, total), bytes_of(size)) for kind, name, size in named if total]
    return Section("Bytes", bytes_of(total), rows, is_whole=True)


def _timeline(manifest: Manifest) -> Section | None:
    found = phases(manifest)
    end = max((phase.end for phase in found), default=0.0)
    rows = [
        Row("", each.name, each.begin, each.end, end, _after(each.begin), seconds(each.end - each.begin))
        for each in found
    ]
    return Section("Checkpoint", seconds(end), rows) if found else None


def count(number: int) -> Figure:
    return Figure(number, f"{number:,}")


def bytes_of(size: int) -> Figure:
    return Figure(size, units.size(size))


def share(size: int, total: int) -> Figure:
    return Figure(size / total, text.percent(size / total))


def seconds(value: float) -> Figure:
    return Figure(value, shown(value))


def _after(value: float) -> Figure:
    return Figure(value, f"at {shown(value)}")


def shown(value: float) -> str:
    """Most steps take milliseconds."""
    return text.seconds(value) if value >= 0.1 else f"{1000 * value:.0f} ms"
