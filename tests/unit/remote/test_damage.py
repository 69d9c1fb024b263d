"""What is found damaged, here or elsewhere, is sent and brought again, and counts for nothing meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from imaging import check, flipped, read, write
from remotes import COMMON, OWN, contents, pulled, pushed, rewritten

from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN
from gcr.image.pack.format import Pack
from gcr.image.remote.folder import Folder
from gcr.image.remote.push import Moved
from gcr.image.remote.remote import Remote
from gcr.image.store.claim import Claim
from gcr.image.store.packs import Packs
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, ImageExists, NoSuchImage


def test_a_half_uploaded_image_is_none_until_it_is_pushed_again(
    store: Store, other: Store, away: Path, kind: type[Remote]
) -> None:
    write(store, "one", [COMMON])
    write(store, "warm", [COMMON, OWN])
    pushed(store, away)
    manifest = store.images.manifest("warm")
    (away / "images/warm.json").unlink()
    (away / "packs" / f"{manifest.packs[1].id}.pack").unlink()
    with pytest.raises(NoSuchImage):
        pulled(other, away)
    assert pushed(store, away).packs_moved == 1
    pulled(other, away)
    assert read(other, "warm") == [COMMON, OWN]


@pytest.mark.parametrize("change", ["cut short", "longer", "another footer", "gone"])
def test_a_pack_that_is_not_what_it_should_be_is_sent_again(
    store: Store, other: Store, away: Path, change: str, kind: type[Remote]
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    (pack,) = (away / "packs").iterdir()
    whole = pack.read_bytes()
    other_footer = whole[:-BLOCK] + bytes(BLOCK)
    pack.write_bytes(
        {"cut short": whole[:-BLOCK], "longer": whole + bytes(BLOCK), "another footer": other_footer, "gone": b""}[
            change
        ]
    )
    if change == "gone":
        pack.unlink()
    assert pushed(store, away).packs_moved == 1
    assert pack.read_bytes() == whole
    pulled(other, away)


def test_a_pack_of_another_image_is_not_replaced_by_a_push(tmp_path: Path, away: Path, kind: type[Remote]) -> None:
    precious, evil = with_one_id(tmp_path)
    pushed(precious, away)
    before = contents(away)
    with pytest.raises(Damaged, match="another pack"):
        pushed(evil, away, "evil")
    assert {name: data for name, data in contents(away).items() if name in before} == before


def test_a_pack_of_another_image_is_not_replaced_by_a_pull(tmp_path: Path) -> None:
    precious, evil = with_one_id(tmp_path)
    before = contents(precious.path)
    with pytest.raises(Damaged, match="another pack"):
        pulled(precious, evil.path, "evil")
    assert precious.images.names() == ["warm"]
    assert {name: data for name, data in contents(precious.path).items() if name in before} == before
    check(precious, "warm")


def with_one_id(folder: Path) -> tuple[Store, Store]:
    """Two stores, each with an image of one pack; both packs have the same id, by forgery."""
    precious, evil = Store(folder / "precious"), Store(folder / "evil")
    (mine,), (theirs,) = write(precious, "warm", [COMMON]).packs, write(evil, "evil", [OWN]).packs
    (evil.packs.folder / f"{theirs.id}.pack").rename(evil.packs.folder / f"{mine.id}.pack")
    rewritten(evil.images.folder / "evil.json", PLAIN, lambda image: image["packs"][0].update(id=mine.id))  # type: ignore[index]
    check(evil, "evil")
    return precious, evil


def found_damaged(store: Store) -> Path:
    """The one pack of an image `warm`, of which a chunk is another one."""
    (pack,) = store.packs.folder.iterdir()
    flipped(pack, 2 * BLOCK, 3)
    with pytest.raises(Damaged):
        check(store, "warm")
    assert pack.with_suffix(".pack.bad").exists()
    return pack


def test_a_pack_that_was_found_damaged_is_pulled_again(store: Store, other: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    write(store, "two", [COMMON])
    pushed(store, away)
    found_damaged(store)
    store.remove(["warm"])
    assert pulled(store, away).packs_moved == 1
    for name in ("warm", "two"):
        check(store, name)
    assert write(store, "next", [COMMON]).costs.bytes_written == 0, "it is trusted again"


def test_what_is_damaged_of_an_image_that_is_here_is_pulled_again(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    before = contents(store.path)
    found_damaged(store)
    flipped(store.images.folder / "warm.chunks", 5, 3)
    (store.images.folder / "warm.hashes").unlink()
    assert pulled(store, away).packs_moved == 1
    assert contents(store.path) == before
    check(store, "warm")
    assert write(store, "next", [COMMON]).costs.bytes_written == 0, "it is trusted again"


def test_what_is_pulled_again_and_found_damaged_meanwhile_is_refused_once(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has opened the former pack finds the damage."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    path = found_damaged(store)
    real = Packs.take

    def late(self: Packs, finished: Path, pack: Pack) -> None:
        real(self, finished, pack)
        self.distrust(path)

    monkeypatch.setattr(Packs, "take", late)
    with pytest.raises(Damaged, match="meanwhile"):
        pulled(store, away)
    monkeypatch.undo()
    assert pulled(store, away).packs_moved == 1
    check(store, "warm")


def with_damaged_hashes(store: Store, away: Path) -> None:
    """An image `warm` that was pushed."""
    write(store, "warm", [COMMON])
    pushed(store, away)
    flipped(store.images.folder / "warm.hashes", 5, 3)


def test_of_an_image_that_is_here_only_what_is_damaged_is_written(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_damaged_hashes(store, away)
    written = []
    monkeypatch.setattr("gcr.image.remote.pull.write_file", lambda path, _data: written.append(path.name))
    assert pulled(store, away).packs_moved == 0
    assert written == ["warm.hashes"]


def test_what_is_damaged_is_left_alone_while_others_have_its_name(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_damaged_hashes(store, away)
    before = contents(store.path)
    with store.held("warm"), pytest.raises(ImageExists, match="being written"):
        pulled(store, away)
    assert contents(store.path).items() - before.items() == {("images/warm.json.new", b"")}
    real = Store.held

    @contextmanager
    def another(self: Store, name: str) -> Iterator[Claim]:
        monkeypatch.undo()
        store.remove([name])
        write(store, name, [OWN])
        with real(self, name) as claim:
            yield claim

    monkeypatch.setattr(Store, "held", another)
    with pytest.raises(NoSuchImage, match="just now"):
        pulled(store, away)
    assert read(store, "warm") == [OWN]


def test_a_pack_that_was_found_damaged_in_a_folder_is_sent_again(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    folder = Store(away, store.cipher)
    found_damaged(folder)
    assert pushed(store, away).packs_moved == 1
    check(folder, "warm")
    assert write(folder, "next", [COMMON]).costs.bytes_written == 0


@pytest.mark.parametrize("act", [pushed, pulled])
def test_an_image_is_not_there_if_a_pack_of_it_is_found_damaged_meanwhile(
    store: Store, other: Store, away: Path, act: Callable[[Store, Path, str], Moved], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [COMMON])
    write(store, "two", [COMMON])
    pushed(store, away)
    pulled(other, away)
    if act is pulled:
        pushed(store, away, "two")
    target = Store(away, store.cipher) if act is pushed else other
    real = Claim.write_hashes if act is pulled else Folder.write

    def late(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        (pack,) = target.packs.folder.glob("*.pack")
        target.packs.distrust(pack)

    monkeypatch.setattr(Claim if act is pulled else Folder, real.__name__, late)
    with pytest.raises(Damaged, match="meanwhile"):
        act(store if act is pushed else other, away, "two")
    assert target.images.names() == ["warm"]
