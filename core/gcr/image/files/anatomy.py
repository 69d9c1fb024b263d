"""The anatomy of an image: sizes of its allocations, origins of its bytes, durations of its checkpoint."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.image.files.manifest import Manifest
from gcr.image.files.references import ZEROS, References
from gcr.image.files.smallfiles import chunk_sizes

PHASES: Sequence[tuple[str, tuple[str, ...], str]] = (  # name, marks (it begins at the last of them), mark of its end
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
    ("wait", (), "returned"),  # of a training's step, see gcr.checkpoints.marks
    ("write", ("drained",), "written"),
)


class SizeClass(Struct, frozen=True):
    """Allocations of more than half of `limit` bytes, and of up to `limit`, a power of two."""

    limit: int
    count: int
    bytes: int


class Phase(Struct, frozen=True):
    """A phase of the checkpoint; times are seconds from the request."""

    name: str
    begin: float
    end: float


def size_classes(manifest: Manifest) -> Sequence[SizeClass]:
    """Returns the classes, smallest first, with the empty ones between them."""
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
    """Returns all bytes by origin.

    `zero` are stored nowhere, `repeated` occur earlier in the image, `shared` were in the store, `written` are new.
    """
    costs = manifest.costs
    known = costs.bytes_total - costs.bytes_zero - costs.bytes_written
    twice = min(repeated, known)
    return {
        "zero": costs.bytes_zero,
        "repeated": twice,
        "shared": known - twice,
        "written": costs.bytes_written,
    }


def repeated_bytes(manifest: Manifest, references: References) -> int:
    """Returns the bytes of the chunks that occur earlier in the image, without those of zeros."""
    seen: set[bytes] = set()
    found = 0
    names = references.names(0, len(references))
    for name, pack, size in zip(names, references.packs, chunk_sizes(manifest), strict=True):
        if pack != ZEROS:
            found += size if name in seen else 0
            seen.add(name)
    return found


def stop_s(manifest: Manifest) -> float | None:
    """Returns for how many seconds the program stood still: until it ran on, or until its device was free.

    Returns None if the checkpoint had not come so far when the image was made.
    """
    at = manifest.timings
    over = at.get("running", at.get("vram_free"))
    return None if over is None or "stop" not in at else over - at["stop"]


def bytes_by_device(manifest: Manifest) -> Mapping[str, int]:
    """Returns the bytes by the device's UUID."""
    found = Counter[str]()
    for process in manifest.processes:
        for handle in process.table.handles:
            found[handle.device] += handle.spec.size
    return found


def phases(manifest: Manifest) -> Sequence[Phase]:
    """Returns the phases that the checkpoint went through, in the order in which they end."""
    at = manifest.timings
    found = [
        Phase(name, max((at[mark] for mark in after if mark in at), default=0.0), at[own])
        for name, after, own in PHASES
        if own in at
    ]
    return sorted(found, key=lambda phase: phase.end)
