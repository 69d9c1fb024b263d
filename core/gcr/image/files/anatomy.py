"""What an image consists of: how large its allocations are, where its bytes come from, how long its making took."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.image.files.manifest import Manifest
from gcr.image.files.references import ZEROS, Reference
from gcr.image.files.smallfiles import chunk_sizes

PHASES: Sequence[tuple[str, tuple[str, ...], str]] = (  # name, the marks it begins after (the last of them), its own
    ("prepare", (), "prepared"),
    ("quiesce", ("stop",), "quiesced"),
    ("copy while it runs", ("prepared",), "copied_live"),
    ("copy out", ("quiesced",), "copied_out"),
    ("snapshot", ("quiesced",), "snapshotted"),
    ("hand over", ("copied_out", "quiesced"), "handed_over"),
    ("drain", ("snapshotted", "handed_over", "quiesced"), "drained"),
    ("control state", ("handed_over",), "frozen"),
    ("stage", ("drained", "frozen", "handed_over"), "staged"),
    ("decide", ("staged", "frozen"), "decided"),
    ("free", ("decided",), "vram_free"),
)


class SizeClass(Struct, frozen=True):
    """Allocations of more than half of `limit` bytes, and of up to `limit`, a power of two."""

    limit: int
    count: int
    bytes: int


class Phase(Struct, frozen=True):
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


def origins(manifest: Manifest, repeated: int) -> Mapping[str, int]:
    """All bytes by where they are: `zero` nowhere, `repeated` elsewhere in it, `shared` in what the store had before,
    `written` for it."""
    known = manifest.bytes_total - manifest.bytes_zero - manifest.bytes_written
    twice = min(repeated, known)
    return {
        "zero": manifest.bytes_zero,
        "repeated": twice,
        "shared": known - twice,
        "written": manifest.bytes_written,
    }


def repeated_bytes(manifest: Manifest, references: Sequence[Reference]) -> int:
    """Bytes of the chunks, but zero ones, that come in an image for the second time or later."""
    seen: set[bytes] = set()
    found = 0
    for reference, size in zip(references, chunk_sizes(manifest), strict=True):
        if reference.pack != ZEROS:
            found += size if reference.name in seen else 0
            seen.add(reference.name)
    return found


def stop_s(manifest: Manifest) -> float | None:
    """Seconds for which the program stood still for a checkpoint after which it went on, or until its device was free.

    None: the checkpoint had not come so far when the image was made.
    """
    at = manifest.timings
    over = at.get("running", at.get("vram_free"))
    return None if over is None or "stop" not in at else over - at["stop"]


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
