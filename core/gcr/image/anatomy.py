"""What an image consists of: how large its allocations are, where its bytes come from, how long its making took."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gcr.image.manifest import Manifest

PHASES: Sequence[tuple[str, tuple[str, ...], str]] = (  # name, the marks it begins after (the last of them), its own
    ("prepare", (), "prepared"),
    ("quiesce", ("stop",), "quiesced"),
    ("copy out", ("quiesced",), "copied_out"),
    ("hand over", ("copied_out", "quiesced"), "handed_over"),
    ("drain", ("handed_over",), "drained"),
    ("control state", ("handed_over",), "frozen"),
    ("stage", ("drained", "frozen", "handed_over"), "staged"),
    ("decide", ("staged", "frozen"), "decided"),
    ("free", ("decided",), "vram_free"),
)


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Allocations of more than half of `limit` bytes, and of up to `limit`, a power of two."""

    limit: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Of the checkpoint; seconds from the request."""

    name: str
    begin: float
    end: float


def size_classes(manifest: Manifest) -> Sequence[SizeClass]:
    """Smallest first; empty ones between them, too."""
    counts, sizes = Counter[int](), Counter[int]()
    for process in manifest.processes:
        for handle in process.table.handles:
            limit = 1 << max(0, handle.spec.size - 1).bit_length()
            counts[limit] += 1
            sizes[limit] += handle.spec.size
    limits = _powers(min(counts), max(counts)) if counts else ()
    return [SizeClass(limit, counts[limit], sizes[limit]) for limit in limits]


def _powers(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2


def origins(manifest: Manifest) -> Mapping[str, int]:
    """All bytes by where they are: `zero` nowhere, `shared` in what the store had, or twice here, `written` for it."""
    shared = manifest.bytes_total - manifest.bytes_zero - manifest.bytes_written
    return {"zero": manifest.bytes_zero, "shared": shared, "written": manifest.bytes_written}


def bytes_by_device(manifest: Manifest) -> Mapping[str, int]:
    """By UUID."""
    found = Counter[str]()
    for process in manifest.processes:
        for handle in process.table.handles:
            found[handle.device] += handle.spec.size
    return found


def phases(manifest: Manifest) -> Sequence[Phase]:
    """As far as it went through them, in the order in which they end."""
    at = manifest.timings
    found = [
        Phase(name, max((at[mark] for mark in after if mark in at), default=0.0), at[own])
        for name, after, own in PHASES
        if own in at
    ]
    return sorted(found, key=lambda phase: phase.end)
