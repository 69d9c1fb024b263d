"""The anatomy of a run: its steps, how long each save took, and what the last one consists of.

Steps are read newest first, for a bounded time, since a run may have thousands.
"""

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gcr.checkpoints.contents import Item, Layout, Saved, compared, files_alone, items_of
from gcr.checkpoints.steps import RECORD, image_of, steps_among
from gcr.image.files.manifest import Manifest
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

READ_S = 5.0  # for the manifests of all steps; one is read in any case
MOST_RECORD = 64 << 20  # bytes


class SavedStep(Struct, frozen=True):
    """A step. created: seconds since the epoch · timings: of its save, see marks.py · world: number of ranks

    bytes_stored: of those written, as they lie in the packs, which may be compressed
    """

    step: int
    created: float
    world: int | None
    bytes_total: int
    bytes_zero: int
    bytes_written: int
    bytes_stored: int
    timings: Mapping[str, float]


class DamagedStep(Struct, frozen=True):
    """A step that cannot be read, or not in full. `error`: in words."""

    step: int
    error: str


class Newest(Struct, frozen=True):
    """The contents of the last step that can be read, largest first.

    before: the step that it is compared with; None: there is none
    by_file: the reason in words why files stand there by their own names; None: the record names all
    """

    step: int
    before: int | None
    by_file: str | None
    contents: Sequence[Saved]


class RunAnatomy(Struct, frozen=True):
    """A run, by the steps that were read.

    backend, versions: of the last of them · count, first, last: of all steps that are there
    steps, damaged: in order · packs, bytes_on_disk: the files that have the chunks of these steps, each once
    """

    run: str
    backend: str
    versions: Mapping[str, str]
    chunk_bytes: int
    count: int
    first: int
    last: int
    packs: int
    bytes_on_disk: int
    steps: Sequence[SavedStep]
    damaged: Sequence[DamagedStep]
    newest: Newest


class _Seen(Struct):
    """The steps that were read so far. `newest`: the last two of the run."""

    steps: list[SavedStep] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    packs: dict[str, int] = field(default_factory=dict)
    newest: list[tuple[int, Manifest]] = field(default_factory=list)

    def take(self, step: int, manifest: Manifest) -> None:
        source, costs = manifest.source, manifest.costs
        stored = costs.bytes_written if costs.bytes_stored is None else costs.bytes_stored
        sizes = (costs.bytes_total, costs.bytes_zero, costs.bytes_written, stored)
        self.steps.append(
            SavedStep(step, manifest.created, source.progress.get("world"), *sizes, dict(manifest.timings))
        )
        self.packs |= {pack.id: pack.bytes for pack in manifest.packs}
        if len(self.newest) < 2:
            self.newest.append((step, manifest))


def anatomy_of(store: Store, run: str, read_s: float = READ_S) -> RunAnatomy | None:
    """Returns None where the store has no step of the run. Raises Damaged, WrongImage if it has none that can be read.

    read_s: seconds, after which no further step is read
    """
    found = steps_among(store.images.names(), run)
    seen, until = _Seen(), time.monotonic() + read_s
    error: Damaged | WrongImage | None = None
    for step in reversed(found):
        if seen.steps and time.monotonic() >= until:
            break
        try:
            seen.take(step, _manifest(store, run, step))
        except NoSuchImage:  # removed just now
            continue
        except (Damaged, WrongImage) as damaged:
            seen.damaged[step] = damaged.message
            error = error or damaged
    if not seen.steps:
        if error:
            raise error
        return None
    return _described(store, run, found, seen)


def _manifest(store: Store, run: str, step: int) -> Manifest:
    manifest = store.images.manifest(image_of(run, step))
    if not manifest.source.progress:
        raise WrongImage(f"image {manifest.name} is no training checkpoint")
    return manifest


def _described(store: Store, run: str, found: Sequence[int], seen: _Seen) -> RunAnatomy:
    manifest, newest = seen.newest[0][1], _newest(store, seen)
    return RunAnatomy(
        run=run,
        backend=manifest.source.backend,
        versions=dict(manifest.source.versions),
        chunk_bytes=manifest.chunk_bytes,
        count=len(found),
        first=found[0],
        last=found[-1],
        packs=len(seen.packs),
        bytes_on_disk=sum(seen.packs.values()),
        steps=seen.steps[::-1],
        damaged=[DamagedStep(*each) for each in sorted(seen.damaged.items())],
        newest=newest,
    )


def _newest(store: Store, seen: _Seen) -> Newest:
    """Returns the contents of the last step; notes the steps that turn out to be damaged."""
    (step, manifest), *others = seen.newest
    layout, (items, why) = _layout(store, step, manifest, seen), _items(store, step, manifest, seen)
    for number, other in others:
        before = _layout(store, number, other, seen)
        if layout.is_comparable and before.is_comparable:
            earlier, unnamed = items, why
            if not layout.has_same(RECORD, before):
                earlier, unnamed = _items(store, number, other, seen)
            if (why is None) == (unnamed is None):
                return Newest(step, number, why, compared(items, layout, earlier, before))
    return Newest(step, None, why, compared(items, layout, (), None))


def _layout(store: Store, step: int, manifest: Manifest, seen: _Seen) -> Layout:
    try:
        return Layout(manifest, store.images.references(manifest))
    except (Damaged, NoSuchImage) as error:
        seen.damaged[step] = error.message
        return Layout(manifest, None)


def _items(store: Store, step: int, manifest: Manifest, seen: _Seen) -> tuple[Sequence[Item], str | None]:
    """Returns what is in a step, and the reason why its files stand for it; None: its record names all."""
    try:
        return items_of(_record(store, manifest), manifest), None
    except (Damaged, WrongImage, NoSuchImage) as error:
        seen.damaged[step] = why = error.message
    except (ValueError, RecursionError) as error:
        why = f"the record of step {step} makes no sense here: {error}"
    return files_alone(manifest), why


def _record(store: Store, manifest: Manifest) -> bytes:
    """Raises Damaged, WrongImage, NoSuchImage; ValueError where there is none, or one without bound."""
    size = next((file.bytes for file in manifest.files if file.name == RECORD), None)
    if size is None or size > MOST_RECORD:
        raise ValueError("there is none" if size is None else f"it has {size} bytes")
    data = bytearray(size)
    with ImageReader(store, manifest.name, threads=1) as reader:
        if reader.manifest != manifest:
            raise NoSuchImage(f"image {manifest.name!r} was removed just now")
        reader.read_file(RECORD, memoryview(data))
    return bytes(data)
