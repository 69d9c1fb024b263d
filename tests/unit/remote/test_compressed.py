"""An image of a compressed pack is pushed and pulled as it is stored, and a pull that was cut short is taken up."""

from pathlib import Path

import pytest
from imaging import check, described, flipped, mapped, read, weights
from remotes import contents, interrupted_after, pulled, pushed

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK
from gcr.image.files.manifest import Manifest
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, StoreUnusable

DATA = [weights(seed, CHUNK_BYTES // 4) for seed in range(5)]


def write(store: Store) -> Manifest:
    with ImageWriter(store, "warm", threads=3, packing="compressed") as writer:
        writer.add((mapped(each), ()) for each in DATA)
        return writer.commit(described("warm", [*map(len, DATA)]))


def test_it_moves_as_it_is_stored(store: Store, other: Store, away: Path) -> None:
    manifest = write(store)
    assert manifest.packs[0].bytes < 0.9 * manifest.costs.bytes_written
    assert pushed(store, away).bytes_moved == manifest.packs[0].bytes
    assert pulled(other, away).bytes_moved == manifest.packs[0].bytes
    for copy in (other, Store(away, store.cipher)):
        assert read(copy, "warm") == DATA
        check(copy, "warm")
    assert contents(store.path) == contents(other.path) == contents(away)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_pull_that_was_cut_short_is_taken_up(
    store: Store, other: Store, away: Path, count: int, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    write(store)
    pushed(store, away)
    with monkeypatch.context() as patch:
        interrupted_after(count, patch)
        with pytest.raises(StoreUnusable, match="dead"):
            pulled(other, away)
    moved = pulled(other, away)
    assert moved.bytes_moved <= moved.bytes - max(0, count - 3) * CHUNK_BYTES // 2
    assert read(other, "warm") == DATA
    check(other, "warm")
    assert contents(other.path) == contents(store.path)


def test_a_changed_bit_elsewhere_is_found_by_the_pull(store: Store, other: Store, away: Path) -> None:
    write(store)
    pushed(store, away)
    (pack,) = (away / "packs").iterdir()
    flipped(pack, BLOCK + 1000, 2)
    with pytest.raises(Damaged):
        pulled(other, away)
    assert not other.images.names()
