"""Nothing that comes from elsewhere is trusted unseen: indexes, sizes, flipped bits, and names."""

import os
from pathlib import Path

import pytest
from imaging import files, flipped, read, write
from remotes import COMMON, OWN, contents, pulled, pushed, rewritten

from gcr.image.chunks.chunk import name_of
from gcr.image.chunks.entry import BLOCK, PLACED
from gcr.image.crypto.cipher import PLAIN
from gcr.image.pack import format as packs
from gcr.image.remote.pull import pull
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, WrongImage

INDEXES = {
    "falling": [(b"n" * 32, 2, 4096), (b"n" * 32, 1, 4096)],
    "beyond the end": [(b"n" * 32, 1, 4096), (b"n" * 32, 1 << 31, 4096)],
    "of one that is larger than any": [(b"n" * 32, 1, 0xFFFFF000)],
    "of nothing": [(b"n" * 32, 1, 0), (b"n" * 32, 1, 8192)],
    "with a gap": [(b"n" * 32, 2, 4096)],
}


@pytest.mark.parametrize("what", INDEXES)
def test_nothing_is_fetched_by_an_index_that_no_pack_has(tmp_path: Path, what: str, small_parts: None) -> None:
    """Its seal may be right: it is forged."""
    evil, mine = Store(tmp_path / "evil"), Store(tmp_path / "mine")
    (pack,) = write(evil, "evil", [COMMON]).packs
    index, at = b"".join(PLACED.pack(*each) for each in INDEXES[what]), 3 * BLOCK
    facts = packs.FACTS.pack(packs.FOOTER_MAGIC, 1, len(INDEXES[what]), at) + name_of(index)
    header = packs.HEADER.pack(packs.HEADER_MAGIC, 1).ljust(BLOCK, b"\0")
    data = header.ljust(at, b"\0") + index.ljust(BLOCK, b"\0") + (facts + name_of(facts)).ljust(BLOCK, b"\0")
    (evil.packs.folder / f"{pack.id}.pack").write_bytes(data)
    forged = {"seal": name_of(facts).hex(), "bytes": len(data)}
    rewritten(evil.images.folder / "evil.json", PLAIN, lambda image: image["packs"][0].update(forged))  # type: ignore[index]
    transfer = Transfer("pull")
    with pytest.raises(Damaged, match="not what was pushed"):
        pull(mine.path, "evil", evil.path.as_uri(), transfer)
    assert transfer.moved == 2 * BLOCK, "index and footer"
    assert list(mine.packs.folder.iterdir()) == []


@pytest.mark.parametrize("size", [0, 100, BLOCK, 2 * BLOCK + 1])
def test_a_pack_of_a_size_that_none_has_is_refused(store: Store, other: Store, away: Path, size: int) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    rewritten(away / "images/warm.json", store.cipher, lambda image: image["packs"][0].update(bytes=size))  # type: ignore[index]
    with pytest.raises(Damaged, match="no pack has"):
        pulled(other, away)


def test_damage_here_is_not_pushed(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    (pack,) = store.packs.folder.iterdir()
    flipped(pack, 2 * BLOCK, 3)
    with pytest.raises(Damaged, match=pack.name):
        pushed(store, away)
    assert contents(away) == {}


PLACES = {
    "pack": (0, BLOCK, 300_000, -BLOCK - 40, -BLOCK, -BLOCK + 60, -1),
    "chunks": (0, -1),
    "hashes": (0, -1),
    "json": (0, 200, -1),
}


@pytest.mark.parametrize(("kind", "at"), [(kind, at) for kind, places in PLACES.items() for at in places])
def test_a_flipped_bit_is_found_and_nothing_appears(store: Store, other: Store, away: Path, kind: str, at: int) -> None:
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    (path,) = away.rglob(f"*.{kind}")
    flipped(path, at % path.stat().st_size, 1)
    with pytest.raises(Damaged, match=away.name.replace(" ", "%20")):
        pulled(other, away)
    assert other.images.names() == []
    assert not list(other.packs.folder.iterdir()) or kind != "pack"
    flipped(path, at % path.stat().st_size, 1)
    pulled(other, away)
    assert read(other, "warm") == [COMMON, OWN]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("share", [0, 0.5, 0.9999])
def test_an_object_that_is_cut_short_is_found(store: Store, other: Store, away: Path, kind: str, share: float) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    (path,) = away.rglob(f"*.{kind}")
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(Damaged):
        pulled(other, away)
    assert (other.images.names(), list(other.packs.folder.iterdir())) == ([], [])


@pytest.mark.parametrize("kind", ["json", "chunks", "hashes"])
def test_an_object_of_any_size_is_not_read_whole(store: Store, other: Store, away: Path, kind: str) -> None:
    """A sparse file that is larger than any memory stands for it."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    (path,) = away.rglob(f"*.{kind}")
    os.truncate(path, 1 << 43)
    with pytest.raises(Damaged, match="more than"):
        pulled(other, away)
    assert other.images.names() == []
    if kind != "json":
        pushed(store, away)
        pulled(other, away)


@pytest.mark.parametrize("cipher", ["plain"], indirect=True)
def test_what_a_newer_gcr_wrote_is_refused(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcr.image.crypto.cipher.PlainPack.version", 5)
    write(store, "warm", [COMMON])
    pushed(store, away)
    monkeypatch.undo()
    with pytest.raises(WrongImage, match="version 5; this gcr reads 4"):
        pulled(other, away)
    path = away / "images/warm.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(WrongImage, match="format 9"):
        pulled(other, away)
    assert files(other) == ["images/warm.json.new"]


@pytest.mark.parametrize("name", ["../../outside", "A" * 32, "0" * 31, "0" * 32 + "\n", 7])
def test_a_manifest_names_no_file_beside_the_packs(store: Store, other: Store, away: Path, name: object) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    (pack,) = (away / "packs").iterdir()
    (away / "outside.pack").write_bytes(pack.read_bytes())
    rewritten(away / "images/warm.json", store.cipher, lambda image: image["packs"][0].update(id=name))  # type: ignore[index]
    with pytest.raises(Damaged):
        pulled(other, away)
    assert files(other) == []
    assert not list(other.path.parent.glob("*outside*"))


def test_a_manifest_of_another_name_or_with_one_pack_twice_is_refused(store: Store, other: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    path = away / "images/warm.json"
    (away / "images/cold.json").write_bytes(path.read_bytes())
    with pytest.raises(Damaged, match="manifest of warm" if store.cipher is PLAIN else "not what was written under"):
        pulled(other, away, "cold")
    rewritten(path, store.cipher, lambda image: image.update(packs=image["packs"] * 2))  # type: ignore[operator]
    with pytest.raises(Damaged):
        pulled(other, away)
