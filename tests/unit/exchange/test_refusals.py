"""Bad input is refused by name before anything is brought; bad peers are left, and what came is kept."""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
from imaging import check, described, files, flipped, mapped, read, write
from msgspec.structs import replace
from nodes import Running, pulled, running, shares
from remotes import COMMON, OTHER, OWN, contents, pushed

from gcr.errors import DeadlinePassed, NoRoom, UsageError
from gcr.exchangeerrors import ImagesDiffer, PeerUnusable, PiecesMissing
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.entry import BLOCK
from gcr.image.exchange.address import PeerAddress
from gcr.image.exchange.coming import ComingPack
from gcr.image.exchange.notes import Noted
from gcr.image.exchange.offer import Offer
from gcr.image.pack.format import NOTES
from gcr.image.remote.arriving import Arriving
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import Damaged, ImageNeeded, NoSuchImage, StoreBusy, WrongImage, WrongKey
from gcr.swarm.peer import Limits


def nothing_in(store: Store) -> bool:
    return files(store) == []


@contextmanager
def one(store: Store, **facts: object) -> Iterator[Running]:
    write(store, "warm", [COMMON, OWN])
    with running(store.path, **facts) as node:  # type: ignore[arg-type]
        yield node


def nowhere() -> PeerAddress:
    """Returns an address where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return PeerAddress("127.0.0.1", probe.getsockname()[1], False)


def test_a_wrong_token_is_refused(store: Store, other: Store) -> None:
    with one(store) as node, pytest.raises(PeerUnusable, match="does not know the token"):
        pulled(other, [node], token="another")
    assert nothing_in(other)


def test_a_name_that_no_peer_has_is_refused_with_all_places(store: Store, other: Store) -> None:
    with one(store) as node:
        with pytest.raises(NoSuchImage, match=f"'cold' at {node.address}"):
            pulled(other, [node], "cold")
        with pytest.raises(NoSuchImage, match="no answer from tcp://127"):
            pulled(other, [node, nowhere()], "cold")
    assert nothing_in(other)


def test_peers_that_do_not_answer_are_refused_and_one_that_does_is_enough(store: Store, other: Store) -> None:
    with pytest.raises(PeerUnusable, match="no peer answers: tcp://127"):
        pulled(other, [nowhere()])
    assert nothing_in(other)
    with one(store) as node:
        pulled(other, [nowhere(), node])
    assert contents(other.path) == contents(store.path)


def test_different_images_of_one_name_are_refused_by_peer(store: Store, other: Store, tmp_path: Path) -> None:
    second = Store(tmp_path / "second", store.cipher)
    write(second, "warm", [OWN])
    with one(store) as node, running(second.path) as another:
        with pytest.raises(ImagesDiffer) as caught:
            pulled(other, [node, another])
        assert f"at {node.address}" in caught.value.message and f"at {another.address}" in caught.value.message
        pushed(second, tmp_path / "away")
        with pytest.raises(ImagesDiffer, match="file://"):
            pulled(other, [node], url=(tmp_path / "away").as_uri())
    assert nothing_in(other)


def test_a_store_of_another_key_is_refused(store: Store, tmp_path: Path) -> None:
    with one(store) as node, pytest.raises(WrongKey, match=str(node.address)):
        pulled(Store(tmp_path / "other", OTHER), [node])


@pytest.mark.parametrize("cipher", ["plain"], indirect=True)
def test_an_image_of_a_newer_gcr_is_refused(store: Store, other: Store) -> None:
    with one(store) as node:
        path = store.images.path("warm")
        path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9', 1))
        with pytest.raises(WrongImage, match=f"{node.address}/images/warm.json"):
            pulled(other, [node])
    assert nothing_in(other)


PLACES: dict[str, Callable[[Path], int]] = {
    "chunk": lambda pack: BLOCK + 9,
    "later": lambda pack: 3 * CHUNK_BYTES,
    "index": lambda pack: footer_index(pack),
    "behind the index": lambda pack: pack.stat().st_size - BLOCK - 1,
    "behind the footer": lambda pack: pack.stat().st_size - 9,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_peer_that_sends_wrong_bytes_is_asked_no_more(
    store: Store, other: Store, tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without another peer the image is damaged, by the name of the liar; with one it comes all the same."""
    with one(store) as liar:
        good = Store(tmp_path / "good", store.cipher)
        pulled(good, [liar])
        (pack,) = store.packs.folder.iterdir()
        flipped(pack, PLACES[place](pack), 0)
        with pytest.raises(Damaged, match=f"{liar.address} sent wrong bytes"):
            pulled(other, [liar])
        assert other.images.names() == []
        with running(good.path) as node:
            moved = pulled(other, [liar, node])
        found = {share.peer: share.wrong for share in moved.peers}
        assert not found[str(node.address)]
    assert f"{liar.address} sent wrong bytes" in caplog.text
    check(other, "warm")
    assert contents(other.path) == contents(good.path)


def test_what_an_earlier_pull_left_is_offered_by_the_next(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one(store, pause=0.05) as node:
        ending_after(node, 11)
        with pytest.raises(PiecesMissing):
            pulled(other, [node], limits=Limits(at_one=4, stuck=1.0, rest=0.1, most_rest=0.2))
    (pack,) = store.images.manifest("warm").packs
    transfer = Transfer("pull")
    with ExitStack() as stack:
        arriving = Arriving(other, pack, transfer.check)
        coming = ComingPack(arriving, stack.enter_context(arriving.opened()), transfer, stack)
        coming.begin()
        missing = coming.chunk_pieces(CHUNK_BYTES)
        noted = Noted(other.packs.folder / f"{pack.id}{NOTES}")
        stack.callback(noted.close)
        begins = range(BLOCK, pack.bytes - CHUNK_BYTES, CHUNK_BYTES)
        here = [at for at in begins if noted.cover(at, CHUNK_BYTES)]
        assert here and not {*here} & {piece.at for piece in missing}
        assert len(here) + len(missing) >= len(begins)


@pytest.mark.parametrize("place", ["chunk", "later", "index", "behind the index"])
def test_a_disk_that_keeps_other_bytes_makes_no_pack(
    store: Store, other: Store, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were right when they came. The peer is not to blame, and the next pull brings all of the pack."""
    real = Arriving.sync

    def sync(self: Arriving, fd: int) -> None:
        real(self, fd)
        flipped(self.path, PLACES[place](self.path), 0)

    with one(store) as node:
        monkeypatch.setattr(Arriving, "sync", sync)
        with pytest.raises(Damaged) as error:
            pulled(other, [node])
        assert "sent wrong bytes" not in error.value.message
        assert (other.images.names(), [*other.packs.folder.iterdir()]) == ([], [])
        monkeypatch.undo()
        pulled(other, [node])
    check(other, "warm")


def footer_index(pack: Path) -> int:
    """Returns a place in the index."""
    from gcr.image.pack.format import Footer

    data = pack.read_bytes()
    return Footer.from_bytes(data[-BLOCK:]).index_at() + 3


def test_small_files_that_are_wrong_come_from_another_peer(store: Store, other: Store, tmp_path: Path) -> None:
    with one(store) as node:
        good = Store(tmp_path / "good", store.cipher)
        pulled(good, [node])
        (store.path / "images/warm.chunks").write_bytes(b"wrong")
        with pytest.raises(Damaged, match=r"warm\.chunks"):
            pulled(other, [node])
        with running(good.path) as second:
            pulled(other, [node, second])
    assert contents(other.path) == contents(good.path)


def test_a_peer_that_stalls_is_left_for_another(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one(store) as node:
        good = Store(tmp_path / "good", store.cipher)
        pulled(good, [node])
        monkeypatch.setattr("gcr.image.exchange.lines.STALLED_S", 2.0)  # a busy machine may take one for an answer
        with running(good.path) as slow:
            slow.node.change = lambda data: b"stall"
            began = time.monotonic()
            moved = pulled(other, [slow, node], limits=Limits(late=0.2, rest=0.1, most_rest=0.2))
            assert time.monotonic() - began < 20
    assert shares(moved) == {str(node.address): moved.bytes_moved}


def test_a_pull_with_a_stalled_peer_alone_ends_and_the_next_takes_up_what_came(store: Store, other: Store) -> None:
    parts: list[bytes] = []

    def change(data: bytes) -> bytes:
        parts.append(data)
        return data if len(parts) < 10 else b"stall"

    with one(store, change=change) as node:
        missing = r"pieces \([0-9]+ bytes\) of pack [0-9a-f]{32} did not come"
        with pytest.raises(PiecesMissing, match=missing):
            pulled(other, [node], limits=Limits(stuck=2.0, rest=0.1, most_rest=0.2))
        assert other.images.names() == []
        node.node.change = lambda data: data
        moved = pulled(other, [node])
    assert moved.bytes_moved <= moved.bytes - 2 * CHUNK_BYTES
    check(other, "warm")


def test_the_deadline_ends_a_pull(store: Store, other: Store) -> None:
    with one(store, pause=5.0) as node, pytest.raises(DeadlinePassed):
        pulled(other, [node], timeout=0.5)
    assert other.images.names() == []


def test_a_full_disk_ends_a_pull_and_the_next_takes_up_what_came(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = os.pwritev, list[int]()

    def pwritev(fd: int, buffers: list[memoryview], at: int) -> int:
        written.append(at)
        if len(written) > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, buffers, at)

    with one(store) as node:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", pwritev)
            with pytest.raises(NoRoom, match="is full"):
                pulled(other, [node])
        assert other.images.names() == []
        moved = pulled(other, [node])
    assert moved.bytes_moved < moved.bytes - CHUNK_BYTES
    check(other, "warm")


def ending_after(node: Running, parts: int) -> None:
    """Ends the node once it has begun so many parts of answers."""
    begun: list[bytes] = []

    def change(data: bytes) -> bytes:
        begun.append(data)
        if len(begun) == parts:
            threading.Thread(target=node.end).start()
        return data

    node.node.change = change  # type: ignore[method-assign]


def test_a_source_that_dies_leaves_what_came_for_the_next_pull(store: Store, other: Store) -> None:
    with one(store, pause=0.05) as node:
        ending_after(node, 11)
        with pytest.raises(PiecesMissing):
            pulled(other, [node], limits=Limits(at_one=4, stuck=1.5, rest=0.1, most_rest=0.2))
    with running(store.path) as node:
        assert pulled(other, [node]).bytes_moved < len(COMMON) + len(OWN)
    assert read(other, "warm") == [COMMON, OWN]


def test_a_source_that_dies_and_comes_back_is_asked_again(store: Store, other: Store) -> None:
    with one(store, pause=0.05) as node:
        ending_after(node, 9)
        over = threading.Event()

        def back() -> None:
            node.ended.wait(20)
            with running(store.path, port=node.address.port):
                over.wait(60)

        thread = threading.Thread(target=back)
        thread.start()
        try:
            pulled(other, [node], limits=Limits(stuck=30, rest=0.1, most_rest=0.2))
        finally:
            over.set()
            thread.join()
    assert read(other, "warm") == [COMMON, OWN]


def test_an_image_that_is_removed_while_a_peer_reads_stays_until_it_is_done(store: Store, other: Store) -> None:
    """As with any reader: its name goes at once, its packs once the peer has left."""
    begun, removed = list[bytes](), list[int]()

    def change(data: bytes) -> bytes:
        begun.append(data)
        if len(begun) == 8:  # in the middle of the pack
            removed.append(store.remove(["warm"]))
        return data

    with one(store, change=change) as node:
        pulled(other, [node])
        assert removed == [0]
    assert store.images.names() == []
    check(other, "warm")
    assert store.clean() > len(COMMON)


@pytest.mark.parametrize("needed", [False, True])
def test_the_name_of_a_jobs_only_copy_goes_while_a_peer_reads_unless_the_job_needs_it(
    store: Store, other: Store, needed: bool
) -> None:
    with ImageWriter(store, "warm") as writer:
        writer.add([(mapped(COMMON), ())])
        writer.commit(lambda contents: replace(described("warm", [len(COMMON)])(contents), only_copy=True))
    with running(store.path) as node:
        pulled(other, [node])
        jobs = {"warm": "llm"} if needed else {}
        with pytest.raises(ImageNeeded) if needed else nullcontext():
            assert store.remove(["warm"], lambda: jobs) == 0, "the packs stay until the peer has left"
        assert store.images.names() == (["warm"] if needed else [])
        with pytest.raises(StoreBusy):
            store.clean()


@pytest.mark.parametrize("text", ["node1:7443", "tls://", "https://a:1", "tls://a:1/x", "tls://u@a:1", "tls://a:b"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address of a peer"):
        PeerAddress.parsed(text)


def test_an_address_without_tls_is_this_machines_own() -> None:
    assert str(PeerAddress.parsed("tcp://[::1]:1")) == "tcp://[::1]:1"
    assert PeerAddress.parsed("tls://node7") == PeerAddress("node7", 7443, True)
    with pytest.raises(UsageError, match="by TLS"):
        PeerAddress.parsed("tcp://node7:7443")


def test_an_exchange_only_reads(store: Store, other: Store) -> None:
    before = {}
    with one(store) as node:
        before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
        pulled(other, [node])
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == before


def test_a_folder_that_is_no_store_offers_nothing_and_stays_as_it_is(tmp_path: Path, other: Store) -> None:
    with running(tmp_path / "none") as node, pytest.raises(NoSuchImage):
        pulled(other, [node])
    assert not (tmp_path / "none").exists()
    Offer(tmp_path / "none").close()
