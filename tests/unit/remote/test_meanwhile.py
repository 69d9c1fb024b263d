"""Several move images at once, or write and remove them meanwhile: the first to claim a name keeps it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Barrier, Thread

import pytest
from imaging import check, described, files, mapped, read, write
from remotes import COMMON, OWN, contents, pulled, pushed

from gcr.errors import DeadlinePassed
from gcr.image.chunks.entry import BLOCK
from gcr.image.pack import format as packs
from gcr.image.remote.folder import Folder
from gcr.image.remote.push import Moved, push
from gcr.image.remote.remote import Remote
from gcr.image.remote.transfer import Moving, Transfer
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, ImageExists, StoreUnusable


def test_two_pulls_bring_what_they_share_once(store: Store, other: Store, away: Path, small_parts: None) -> None:
    for name in ("one", "two"):
        write(store, name, [COMMON, OWN])
        pushed(store, away, name)
    start, moved = Barrier(2), []

    def bring(name: str) -> None:
        start.wait()
        moved.append(pulled(other, away, name).bytes_moved)

    threads = [Thread(target=bring, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    size = store.images.manifest("one").packs[0].bytes
    assert sorted(moved) == [0, size]
    for name in ("one", "two"):
        assert read(other, name) == [COMMON, OWN]


def test_of_two_images_under_one_name_the_first_to_claim_it_arrives(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, as_bucket: None
) -> None:
    """The first dies before its manifest is there; the second does not touch what it has left."""
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    with monkeypatch.context() as patch:
        for name in ("write", "write_pack"):
            patch.setattr(Remote, name, lambda *_: None)
        patch.setattr(Remote, "has", lambda *_: True)
        patch.setattr(Remote, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pushed(store, away)
    claimed = contents(away)
    assert [*claimed] == ["images/warm.json.new"]
    with pytest.raises(ImageExists) as caught:
        pushed(other, away)
    assert "images/warm.json.new" in caught.value.hint
    assert contents(away)["images/warm.json.new"] == claimed["images/warm.json.new"]
    assert not {"images/warm.chunks", "images/warm.hashes"} & contents(away).keys()
    pushed(store, away)
    assert set(contents(away)) >= set(files(store))
    assert "images/warm.json.new" not in contents(away)


def test_an_image_that_arrives_meanwhile_is_not_touched(
    store: Store, other: Store, away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_bucket: None
) -> None:
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    real = Remote.has

    def has(self: Remote, pack: packs.Pack) -> bool:
        monkeypatch.setattr(Remote, "has", real)
        pushed(store, away)
        return real(self, pack)

    monkeypatch.setattr(Remote, "has", has)
    with pytest.raises(ImageExists):
        pushed(other, away)
    assert "images/warm.json.new" not in contents(away)
    third = Store(tmp_path / "third", store.cipher)
    pulled(third, away)
    assert read(third, "warm") == [COMMON]


@pytest.mark.parametrize("there", [False, True], ids=["new", "pushed again"])
def test_no_other_writer_makes_an_image_of_that_name_in_the_folder(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Neither a job of that store nor another push does, whether the name is taken or not; they leave nothing."""
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    if there:
        pushed(store, away)
    real, refused = Folder.has, []

    def has(self: Folder, pack: packs.Pack) -> bool:
        if there:
            Store(away, store.cipher).remove(["warm"])
        for act in (lambda: write(Store(away, store.cipher), "warm", [OWN]), lambda: pushed(other, away)):
            with pytest.raises(ImageExists, match="just now"):
                act()
            refused.append(act)
        return real(self, pack)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "has", has)
        pushed(store, away)
    assert len(refused) >= 2
    folder = Store(away, store.cipher)
    assert read(folder, "warm") == [COMMON]
    check(folder, "warm")
    assert not (away / "images/warm.json.new").exists()


def test_a_writer_that_claims_the_name_before_a_push_has_ended_keeps_it(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pushed image is removed at once, and another begun."""
    write(store, "warm", [COMMON])
    real, begun = Folder.publish, []

    def publish(self: Folder, name: str, manifest: bytes) -> bool:
        done = real(self, name, manifest)
        folder = Store(away, store.cipher)
        folder.remove(["warm"])
        begun.append(ImageWriter(folder, "warm").__enter__())
        return done

    monkeypatch.setattr(Folder, "publish", publish)
    pushed(store, away)
    (writer,) = begun
    writer.add([(mapped(OWN), ())])
    writer.commit(described("warm", [len(OWN)]))
    writer.__exit__()
    assert read(Store(away, store.cipher), "warm") == [OWN]


def test_an_image_that_goes_while_it_is_pushed_again_is_there_at_the_end(
    store: Store, other: Store, away: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Remote]
) -> None:
    write(store, "warm", [COMMON])
    pushed(store, away)
    real = kind.has

    def has(self: Remote, pack: packs.Pack) -> bool:
        (away / "images/warm.json").unlink(missing_ok=True)
        return real(self, pack)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "has", has)
    pushed(store, away)
    pulled(other, away)
    assert read(other, "warm") == [COMMON]


def test_what_can_neither_be_read_nor_made_is_no_push(store: Store, away: Path) -> None:
    write(store, "warm", [COMMON])
    Store(away, store.cipher)
    (away / "images/warm.json").symlink_to("nowhere")
    with pytest.raises(Damaged, match=r"warm\.json: it is no regular file"):
        pushed(store, away)


def test_another_image_that_takes_the_name_of_one_that_is_pushed_again_is_not_touched(
    store: Store, other: Store, away: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_bucket: None
) -> None:
    write(store, "warm", [COMMON])
    write(other, "warm", [OWN])
    pushed(store, away)
    real = Remote.has

    def has(self: Remote, pack: packs.Pack) -> bool:
        monkeypatch.setattr(Remote, "has", real)
        for suffix in ("json", "chunks", "hashes"):
            (away / f"images/warm.{suffix}").unlink()
        pushed(other, away)
        return real(self, pack)

    monkeypatch.setattr(Remote, "has", has)
    with pytest.raises(ImageExists):
        pushed(store, away)
    third = Store(tmp_path / "third", store.cipher)
    pulled(third, away)
    assert read(third, "warm") == [OWN]


def test_what_is_not_kept_as_it_was_sent_is_no_push(
    store: Store, away: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Remote]
) -> None:
    write(store, "warm", [COMMON])

    def cut_short(self: Remote, pack: packs.Pack, *_rest: object) -> None:
        (away / "packs").mkdir(exist_ok=True)
        (away / f"packs/{pack.id}.pack").write_bytes(bytes(2 * BLOCK))

    for kind in (Remote, Folder):
        monkeypatch.setattr(kind, "write_pack", cut_short)
    with pytest.raises(StoreUnusable, match="not what was sent"):
        pushed(store, away)
    assert not (away / "images/warm.json").exists()


@pytest.mark.parametrize("act", [pushed, pulled])
def test_past_its_time_it_ends_and_nothing_is_there(
    store: Store, other: Store, away: Path, act: Callable[[Store, Path], Moved], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "warm", [COMMON])
    if act is pulled:
        pushed(store, away)
    monkeypatch.setattr("remotes.Transfer", partial(Transfer, timeout=1e-9))
    with pytest.raises(DeadlinePassed):
        act(store if act is pushed else other, away)
    assert not list(away.glob("images/*.json")) or act is pulled
    assert other.images.names() == []


def test_progress_is_told_up_to_the_last_byte(store: Store, away: Path) -> None:
    manifest = write(store, "warm", [COMMON])
    told: list[Moving] = []
    push(store, "warm", away.as_uri(), Transfer("push", tell=told.append))
    size = manifest.packs[0].bytes
    assert (told[-1].phase, told[-1].bytes, told[-1].total_bytes) == ("push", size, size)
