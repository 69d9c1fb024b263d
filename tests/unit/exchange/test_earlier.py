"""An awaited image of which an earlier one is here: only what differs from that is looked up; all else holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from imaging import check, flipped, read, write
from making import PATIENCE_S, Making, packs
from nodes import pulled, running
from remotes import COMMON, OWN, rewritten

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.chunk import NAME_BYTES, name_of
from gcr.image.files.names import references_path
from gcr.image.files.references import RECORD_BYTES
from gcr.image.pack.format import DISTRUSTED, SUFFIX, Pack
from gcr.image.pack.reader import PackReader
from gcr.image.read.places import Places
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged
from gcr.testing.machine import until


def earlier(store: Store, other: Store) -> Pack:
    """Writes an image of which the awaited one has a pack, and pulls it. Returns that pack."""
    (pack,) = write(store, "cold", [COMMON]).packs
    with running(store.path) as node:
        pulled(other, [node], name="cold")
    return pack


def test_packs_of_an_earlier_image_are_opened_before_the_image_is_there_and_not_again(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the earlier images that are named the first one counts that is here."""
    pack, opened, looked_up = earlier(store, other), list[bool](), list[tuple[int, int]]()
    init, runs = PackReader.__init__, Places._runs

    def noted(self: PackReader, path: Path, *given: Any) -> None:
        if path == other.packs.folder / f"{pack.id}{SUFFIX}":
            opened.append(store.images.path("warm").exists())
        init(self, path, *given)

    def noted_runs(self: Places, first: int, end: int) -> object:
        looked_up.append((first, end))
        return runs(self, first, end)

    monkeypatch.setattr(PackReader, "__init__", noted)
    monkeypatch.setattr("gcr.image.read.places._AT_ONCE", 1)
    with running(store.path) as node:
        making = Making(store, lambda number: number == 1 or until(lambda: opened, PATIENCE_S, "the pack is read"))
        monkeypatch.setattr(Places, "_runs", noted_runs)
        moved = pulled(other, [node], wait_s=5.0, awaiting=lambda: None, before=("none", "cold"))
        making.end()
    assert opened == [False] and moved.packs == 3
    count = len(COMMON) // CHUNK_BYTES
    assert sorted(looked_up) == [(0, count), *((count + at, count + at + 1) for at in range(5))], "all, then the rest"
    assert read(other, "warm") == [COMMON, OWN, b"last"]
    check(other, "warm")


@pytest.mark.parametrize("wrong", ["found damaged", "found damaged meanwhile", "gone meanwhile"])
def test_a_pack_of_an_earlier_image_that_counts_no_more_is_brought_again(
    store: Store, other: Store, wrong: str
) -> None:
    path, spoilt = other.packs.folder / f"{earlier(store, other).id}{SUFFIX}", list[int]()

    def spoil() -> None:
        """Is called once the earlier image was read."""
        if not spoilt and (wrong == "found damaged" or packs(other) > 1):
            spoilt.append(other.packs.distrust(path) if "damaged" in wrong else path.unlink())  # type: ignore[func-returns-value]

    if wrong == "found damaged":
        spoil()
    with running(store.path) as node:
        making = Making(store, lambda number: number == 1 or until(lambda: spoilt, PATIENCE_S, "it is spoilt"))
        pulled(other, [node], wait_s=5.0, awaiting=spoil, before=("cold",))
        making.end()
        assert node.sent > len(COMMON) + len(OWN)
    assert not path.with_suffix(DISTRUSTED).exists()
    check(other, "warm")


def test_an_earlier_image_that_is_damaged_is_of_no_use(
    store: Store, other: Store, caplog: pytest.LogCaptureFixture
) -> None:
    earlier(store, other)
    flipped(other.path / references_path("cold"), 3, 1)
    with running(store.path) as node:
        making = Making(store, lambda _number: None)
        pulled(other, [node], wait_s=5.0, awaiting=lambda: None, before=("cold",))
        making.end()
    assert "cold.chunks" in caplog.text
    check(other, "warm")


@pytest.mark.parametrize("before", [(), ("cold",)])
@pytest.mark.parametrize("number", [0, -1])
def test_an_awaited_image_with_a_chunk_in_another_place_is_refused(
    store: Store, other: Store, before: Sequence[str], number: int
) -> None:
    """The first chunk is one of the earlier image, the last one is not."""
    earlier(store, other)
    Making(store, lambda _number: None).end()
    path, file = store.path / references_path("warm"), references_path("warm")
    data = bytearray(store.cipher.decrypt(file, path.read_bytes(), path))
    data[number * RECORD_BYTES % len(data) + NAME_BYTES + 4] ^= 1  # the block
    path.write_bytes(store.cipher.encrypt(file, bytes(data)))
    digest = name_of(bytes(data)).hex()
    rewritten(store.images.path("warm"), store.cipher, lambda image: image.update(chunks=digest))
    with running(store.path) as node, pytest.raises(Damaged, match="not where it says"):
        pulled(other, [node], wait_s=5.0, awaiting=lambda: None, before=before)
    assert other.images.names() == ["cold"]
