"""Pulls an image from several nodes at once, and from a store elsewhere what none of them has.

All nodes are asked first which image has the name. If two of them have different ones, nothing is brought. A node
without the image may still have packs of it: one that pulls it just now has it only at the end. The commit is that of
any pull (remote/pull.py).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from msgspec import Struct, structs

from gcr.cutroot import MOST as MOST_OF_A_ROOT
from gcr.cutroot import Root
from gcr.exchangeerrors import ImagesDiffer, PeerUnusable
from gcr.image.crypto.cipher import Cipher
from gcr.image.disk.failing import usable, with_room
from gcr.image.exchange.address import PeerAddress, Trust
from gcr.image.exchange.awaiting import Awaited
from gcr.image.exchange.bringing import TICK_S, Brought, Hands
from gcr.image.exchange.coming import ComingPack
from gcr.image.exchange.giver import Bucket, Connections, Giver, Node
from gcr.image.exchange.incoming import Incoming, each_of
from gcr.image.exchange.lines import NotSent
from gcr.image.exchange.wire import MOST_PACKS
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import manifest_path, root_path
from gcr.image.files.roots import root_in
from gcr.image.files.smallfiles import MOST_MANIFEST, SmallFile, manifest_of
from gcr.image.pack.format import Pack
from gcr.image.remote.arriving import Arriving
from gcr.image.remote.folder import remote_at
from gcr.image.remote.pull import Elsewhere, opened, pull_from
from gcr.image.remote.push import Moved
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, StoreUnusable
from gcr.swarm.peer import Limits

log = logging.getLogger(__name__)

T = TypeVar("T")


class Share(Struct, frozen=True):
    """The part of one peer. `bytes`: of packs that it sent · `wrong`: it sent wrong bytes, and was asked no more."""

    peer: str
    bytes: int
    wrong: bool


class MovedFromPeers(Moved, frozen=True):
    """As Moved; `peers`: those that sent something, the store elsewhere among them."""

    peers: Sequence[Share] = ()


class Peers(Struct, frozen=True):
    """The peers of a pull, and what shows that both sides belong together.

    token: None for none · wait_s: so many seconds each peer may take until it has the image, MOST_WAIT_S at most
    """

    addresses: Sequence[PeerAddress]
    token: str | None
    trust: Trust
    limits: Limits = Limits()
    wait_s: float = 0.0


def pull_from_peers(
    folder: Path,
    name: str,
    peers: Peers,
    url: str | None,
    transfer: Transfer,
    cipher: Cipher,
    awaiting: Callable[[], object] | None = None,
    before: Sequence[str] = (),
) -> MovedFromPeers:
    """Pulls an image from peers, and from the store at `url` what no peer has.

    awaiting: the first peer is making the image; called now and then until it has, and may raise
    before: names of earlier images of the same job, the last one first, if the image is awaited; some may be here
    Raises as `pull` does, and PeerUnusable, ImagesDiffer, PiecesMissing.
    """
    elsewhere = Elsewhere(remote_at(url, cipher), name) if url else None
    with Swarming(name, peers, elsewhere, cipher, transfer) as swarming:
        if awaiting:
            swarming.await_image(folder, awaiting, before)
        moved = pull_from(swarming, folder, transfer, cipher)
    brought = swarming.brought
    shares = [Share(peer, size, peer in brought.distrusted) for peer, size in sorted(brought.bytes.items())]
    return MovedFromPeers(**structs.asdict(moved), peers=shares)


class Found(Struct, frozen=True):
    """An image as one place has it. `at`: the place, for errors."""

    at: str
    manifest: Manifest
    stored: bytes


class Swarming:
    """A source of remote/pull.py: all peers together. Use it as a context manager."""

    def __init__(
        self, name: str, peers: Peers, elsewhere: Elsewhere | None, cipher: Cipher, transfer: Transfer
    ) -> None:
        self._name, self._peers, self._elsewhere, self._cipher = name, peers, elsewhere, cipher
        self._transfer, self._hands = transfer, Hands(transfer)
        self._having: Sequence[Node] = ()  # those with the image's manifest
        self._stack = ExitStack()
        self._awaited: Awaited | None = None

    def __enter__(self) -> Self:
        self._peers.trust.check()
        self._runner = asyncio.Runner()
        self._connections = self._runner.run(self._opened())
        givers: list[Giver] = [*self._nodes, *([Bucket(self._elsewhere.remote)] if self._elsewhere else [])]
        self._incoming = Incoming(self._connections, givers, self._hands, self._peers.limits, self._transfer)
        return self

    def __exit__(self, *_error: object) -> None:
        with self._stack:
            self._runner.run(self._closed())
            self._runner.close()
            self._hands.close()

    @property
    def brought(self) -> Brought:
        return self._incoming.brought

    @property
    def _nodes(self) -> Sequence[Node]:
        return self._connections.nodes

    async def _opened(self) -> Connections:
        return Connections(self._peers.addresses, self._peers.token, self._peers.trust)

    async def _closed(self) -> None:
        if self._awaited:
            await self._awaited.end()
        await self._incoming.end()
        await self._connections.close()

    # ---- an image that is being made ----------------------------------------------------------------------------

    def await_image(self, folder: Path, check: Callable[[], object], before: Sequence[str] = ()) -> None:
        """Begins to bring packs that the first node sends ahead, until that has the image, or answers no more.

        They are of no image until then, and stay if there will be none. `check` is called meanwhile, and may raise.
        `before`: see pull_from_peers. Raises as `pull` does.
        """
        node, wait_s = self._connections.nodes[0], self._peers.wait_s

        def opened_store() -> Store:
            return self._stack.enter_context(opened(folder, self._transfer, self._cipher))

        self._awaited = Awaited(self._name, node, self._incoming, opened_store, before)
        self._runner.run(self._connecting())
        with usable(folder), with_room(folder, lambda: self._transfer.left):
            self._runner.run(self._awaited.come(wait_s, check))

    async def _connecting(self) -> None:
        self._connections.await_bytes()

    # ---- which image --------------------------------------------------------------------------------------------

    def manifest(self) -> tuple[Manifest, bytes]:
        """Raises PeerUnusable, ImagesDiffer, NoSuchImage, WrongKey, WrongImage, Damaged."""
        found, away = self._done(self._asked())
        there = self._there(bool(found))
        if not found and not there:
            raise self._nowhere(away)
        every = [*found, *([there] if there else [])]
        seals = {each.manifest.seal() for each in every} if len(every) > 1 else ()  # a seal takes 2 ms
        if len(seals) > 1:
            raise ImagesDiffer(f"there are {len(seals)} images {self._name!r}: {_by_image(every)}", hint=_ONE)
        having = {each.at for each in found}
        self._having = [node for node in self._nodes if node.name in having]
        if self._awaited and self._awaited.manifest:
            self._runner.run(self._awaited.begin(every[0].manifest))
        return every[0].manifest, every[0].stored

    async def _asked(self) -> tuple[list[Found], list[str]]:
        """Returns the image of each node that has it, and why others do not answer."""
        found, away = list[Found](), list[str]()

        async def ask(node: Node) -> None:
            try:
                mark, stored = await self._said_by(node)
            except NotSent as error:
                log.warning("%s does not answer: %s", node.name, error)
                away.append(f"{node.name}: {error}")
                return
            if stored is not None:
                self._cipher.check_mark(mark, node.name)
                address = f"{node.name}/{manifest_path(self._name)}"
                found.append(Found(node.name, manifest_of(self._name, stored, self._cipher, address), stored))

        await each_of(ask, self._nodes)
        return sorted(found, key=lambda each: each.at), away

    async def _said_by(self, node: Node) -> tuple[bytes, bytes | None]:
        """Returns the mark of a node's store, and the manifest as the node has it. Raises NotSent, PeerUnusable."""
        if self._awaited and self._awaited.node is node and self._awaited.manifest:
            return self._awaited.mark, self._awaited.manifest
        return await node.mark(), await node.small(f"{self._name}.json", MOST_MANIFEST, self._peers.wait_s)

    def _there(self, found: bool) -> Found | None:
        """Returns the image of the store elsewhere. Where nodes have the image, it need not answer."""
        if not self._elsewhere:
            return None
        url = self._elsewhere.remote.url
        try:
            return Found(url, *self._elsewhere.manifest())
        except NoSuchImage:
            return None
        except StoreUnusable as error:
            if not found:
                raise
            log.warning("%s", error)
            return None

    def _nowhere(self, away: Sequence[str]) -> PeerUnusable | NoSuchImage:
        if len(away) == len(self._nodes) and not self._elsewhere:
            return PeerUnusable(f"no peer answers: {'; '.join(away)}", hint="does gcr exchange run there?")
        places = [*(node.name for node in self._nodes), *([self._elsewhere.remote.url] if self._elsewhere else [])]
        silent = f"; no answer from {'; '.join(away)}" if away else ""
        return NoSuchImage(f"no image {self._name!r} at {', '.join(places)}{silent}", hint="gcr images there")

    # ---- its files ----------------------------------------------------------------------------------------------

    def address(self, path: str) -> str:
        return f"{self._having[0].name}/{path}" if self._having else self._of_elsewhere().address(path)

    def small(self, file: SmallFile) -> tuple[bytes, bytes]:
        """Asks one node after the other, then the store elsewhere."""
        error: Damaged | None = None
        for node in self._having:
            try:
                found = self._done(self._small_of(node, file))
                said = file.said(found, self._cipher, f"{node.name}/{file.path}")
            except NotSent as failure:
                log.warning("%s: %s", node.name, failure)
            except Damaged as damaged:
                log.warning("%s", damaged.message)
                error = damaged
            else:
                assert found is not None
                return found, said
        if self._elsewhere:
            return self._elsewhere.small(file)
        raise error or PeerUnusable(f"no peer sends {file.path}: {', '.join(node.name for node in self._having)}")

    async def _small_of(self, node: Node, file: SmallFile) -> bytes | None:
        if self._awaited and self._awaited.node is node:
            return await self._awaited.small(file)
        return await node.small(Path(file.path).name, file.most)

    def root(self, manifest: Manifest) -> Root | None:
        """Asks one node after the other, then the store elsewhere. Raises Damaged where no root was right."""
        path, error = root_path(self._name), None
        for node in self._having:
            try:
                found = self._done(node.small(Path(path).name, MOST_OF_A_ROOT))
                if found is not None:
                    return root_in(found, manifest, f"{node.name}/{path}")
            except NotSent as failure:
                log.warning("%s: %s", node.name, failure)
            except Damaged as damaged:
                log.warning("%s", damaged.message)
                error = damaged
        root = self._elsewhere.root(manifest) if self._elsewhere else None
        if root is None and error:
            raise error
        return root

    def has(self, store: Store, pack: Pack) -> bool:
        return self._incoming.has(store, pack)

    def bring(self, store: Store, missing: Sequence[Pack], transfer: Transfer) -> None:
        """Brings packs, so many at a time as a node tells about at once, in the order that all pulls keep."""
        left = self._runner.run(self._incoming.over(missing))
        transfer.skip(sum(pack.bytes for pack in missing) - sum(pack.bytes for pack in left))  # they count already
        size = self._incoming.piece_bytes(left)
        packs = sorted(left, key=lambda pack: pack.id)  # two pulls that want the same packs lock them in one order
        for first in range(0, len(packs), MOST_PACKS):
            with ExitStack() as stack:
                coming = list[ComingPack]()
                for pack in packs[first : first + MOST_PACKS]:
                    arriving = Arriving(store, pack, transfer.check)
                    each = ComingPack(arriving, stack.enter_context(arriving.opened()), transfer, stack)
                    if not each.is_there():
                        coming.append(each)
                self._runner.run(self._incoming.bring(coming, size))
        self._runner.run(self._come())

    async def _come(self) -> None:
        self._connections.have_come()

    def has_placed(self, references: bytes) -> bool:
        return self._awaited is not None and self._done(self._awaited.has_placed(references))

    def _done(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of work that asks peers. Raises DeadlinePassed, and what it raises."""
        return self._runner.run(self._watched(work))

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        try:
            while not (await asyncio.wait({task}, timeout=TICK_S))[0]:
                self._hands.check()
            return task.result()
        finally:
            task.cancel()

    def _of_elsewhere(self) -> Elsewhere:
        assert self._elsewhere, "an image comes from a node or from elsewhere"
        return self._elsewhere


_ONE = "name only peers that have the image that is meant"


def _by_image(found: Sequence[Found]) -> str:
    """Returns the places of each image: `one of 12:00 at a, b; another of 13:00 at c`."""
    by_seal: dict[bytes, list[str]] = {}
    for each in found:
        by_seal.setdefault(each.manifest.seal(), []).append(each.at)
    return "; ".join(f"{seal.hex()[:8]} at {', '.join(places)}" for seal, places in by_seal.items())
