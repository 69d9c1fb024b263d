"""An image is compared with one that was checked before it: a chunk in a wrong place is found anywhere."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import CIPHERS, bytes_of, write
from msgspec.structs import replace

from gcr.hashing.chunks import TILE_BYTES
from gcr.image.chunks.entry import BLOCK
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import RECORD_BYTES, ZEROS, References
from gcr.image.read import places
from gcr.image.read.places import Places, checked_places
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged

CHUNK = TILE_BYTES
LAST = [100, BLOCK + 1, CHUNK]  # bytes of the last chunk of an allocation
FORGERIES = 25  # of each image

seeds = st.integers(0, 9)  # of a chunk's bytes; 0: zeros


class Image:
    """An image, and the bytes of its references, which may be forged."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest
        self.count = len(store.images.references(manifest))
        self.data = bytearray(store.images.references(manifest).packed(0, self.count))

    def places(self) -> Places:
        packs = [self.store.packs.reader(pack) for pack in self.manifest.packs]
        return Places(self.store, self.manifest, References(bytes(self.data)), packs)

    def is_refused(self, checked: Places | None = None) -> bool:
        try:
            self.places().check(checked)
        except Damaged:
            return True
        return False

    def record(self, number: int) -> slice:
        return slice(number * RECORD_BYTES, (number + 1) * RECORD_BYTES)


def written(store: Store, name: str, allocations: Sequence[Sequence[int]], last: int) -> Image:
    """Writes allocations of chunks; the last one of each has `last` bytes."""
    sizes = [[*[CHUNK] * (len(each) - 1), last] for each in allocations]
    data = [
        b"".join(bytes_of(seed, size) if seed else bytes(size) for seed, size in zip(*each, strict=True))
        for each in zip(allocations, sizes, strict=True)
    ]
    return Image(store, write(store, name, data, chunk_bytes=CHUNK))


def forge(image: Image, others: Sequence[Image], rng: random.Random) -> None:
    """Changes a reference, the packs of the manifest, or a size; some changes leave an image that is right."""
    at, other = rng.randrange(image.count), rng.choice([image, *others])
    match rng.randrange(6):
        case 0:  # as any image has any chunk, perhaps this one
            image.data[image.record(at)] = other.data[
                other.record(rng.choice([at, rng.randrange(other.count)]) % other.count)
            ]
        case 1:
            number = rng.choice([*range(8), 254, 255, 256, ZEROS - 1, ZEROS])
            struct.pack_into("<I", image.data, at * RECORD_BYTES + 32, number)
        case 2:
            (block,) = struct.unpack_from("<I", image.data, at * RECORD_BYTES + 36)
            struct.pack_into("<I", image.data, at * RECORD_BYTES + 36, abs(block + rng.choice([-4, -1, 1, 4])))
        case 3:
            image.data[at * RECORD_BYTES + rng.randrange(32)] ^= 1 << rng.randrange(8)
        case 4:
            packs = [*image.manifest.packs]
            many = rng.sample(packs, rng.randrange(len(packs) + 1))
            found = rng.choice([many, rng.sample(packs, len(packs)), [*packs, *other.manifest.packs]])
            image.manifest = replace(image.manifest, packs=found)
        case 5:
            (process,) = image.manifest.processes
            handles = [*process.table.handles]
            number = rng.randrange(len(handles))
            size = max(1, handles[number].spec.size + rng.choice([-1, 1, -BLOCK, BLOCK]))
            handles[number] = replace(handles[number], spec=replace(handles[number].spec, size=size))
            table = replace(process.table, handles=tuple(handles))
            image.manifest = replace(image.manifest, processes=(replace(process, table=table),))


@settings(max_examples=60)
@given(
    cipher=st.sampled_from([*CIPHERS]),
    earlier=st.lists(st.lists(seeds, min_size=1, max_size=6), max_size=2),
    allocations=st.lists(st.lists(seeds, min_size=1, max_size=14), min_size=1, max_size=3),
    changes=st.lists(st.tuples(st.integers(0, 40), seeds), max_size=6),
    last=st.sampled_from(LAST),
    at_once=st.integers(1, 9),
    rng=st.randoms(use_true_random=False),
)
def test_beside_an_image_that_was_checked_each_misplaced_chunk_is_found(
    cipher: str,
    earlier: Sequence[Sequence[int]],
    allocations: Sequence[Sequence[int]],
    changes: Sequence[tuple[int, int]],
    last: int,
    at_once: int,
    rng: random.Random,
) -> None:
    """A check of all references says which are wrong."""
    later = [[*each] for each in allocations]
    for at, seed in changes:
        some = later[at % len(later)]
        some[at % len(some)] = seed
    with TemporaryDirectory() as folder, mock.patch.object(places, "_AT_ONCE", at_once):
        store = Store(Path(folder) / "store", CIPHERS[cipher])
        others = [written(store, f"i{number}", [some], last) for number, some in enumerate(earlier)]
        before, image = written(store, "before", allocations, last), written(store, "last", later, last)
        checked = before.places()
        checked.check()
        assert not image.is_refused(checked)
        manifest, data = image.manifest, bytes(image.data)
        for _ in range(FORGERIES):
            image.manifest, image.data = manifest, bytearray(data)
            for _ in range(rng.choice([1, 1, 2])):
                forge(image, [*others, before], rng)
            assert image.is_refused(checked) == image.is_refused()


def test_only_chunks_that_differ_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = Store(tmp_path / "store"), list[tuple[int, int]]()
    before = written(store, "before", [[*range(1, 41)]], CHUNK)
    image = written(store, "last", [[*range(1, 13), 99, *range(14, 41), 98]], CHUNK)
    checked, runs = before.places(), Places._runs
    checked.check()

    def looked_up(self: Places, first: int, end: int) -> object:
        seen.append((first, end))
        return runs(self, first, end)

    monkeypatch.setattr(places, "_AT_ONCE", 8)
    monkeypatch.setattr(Places, "_runs", looked_up)
    packs = [store.packs.reader(pack) for pack in image.manifest.packs]
    checked_places(store, image.manifest, store.images.references(image.manifest), packs, checked)
    assert seen == [(8, 16), (40, 41)]
