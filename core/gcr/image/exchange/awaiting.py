"""An image that a node is making just now: the packs that it sends ahead, and then its manifest."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from gcr.image.exchange.bringing import TICK_S
from gcr.image.exchange.giver import Node
from gcr.image.exchange.incoming import Incoming
from gcr.image.exchange.lines import NotSent
from gcr.image.files import ahead
from gcr.image.files.manifest import Manifest
from gcr.image.files.smallfiles import MOST_MANIFEST, SmallFile, files_beside, references_file
from gcr.image.pack.format import Pack
from gcr.image.remote.earlier import Earlier, earlier
from gcr.image.remote.pull import placed
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, WrongImage

log = logging.getLogger(__name__)


class Awaited:
    """One such image, and what comes of it before a pull asks for it. All calls within one event loop; `end` it.

    mark: of the node's store · manifest: the bytes of its file, once the node has sent them
    """

    def __init__(
        self, name: str, node: Node, incoming: Incoming, opened: Callable[[], Store], before: Sequence[str] = ()
    ) -> None:
        """`opened`: opens the store until the end of the pull: a clean-up would remove the packs that come.

        before: earlier images of the same job, the last one first
        """
        self.node = node
        self.mark = b""
        self.manifest: bytes | None = None
        self._name, self._incoming, self._opened, self._before = name, incoming, opened, before
        self._store: Store | None = None
        self._beside = dict[str, asyncio.Task[bytes | None]]()  # small files that were asked for, by their paths
        self._reading: asyncio.Task[Earlier | None] | None = None
        self._placing: asyncio.Task[bytes] | None = None

    async def come(self, wait_s: float, check: Callable[[], object]) -> None:
        """Begins to bring packs that the node sends ahead, until that has the image, or answers no more.

        wait_s: seconds that one answer of the node may take · check: called meanwhile, may raise
        The store is open then. Raises PeerUnusable, Damaged, and what `over` of the packs and `opened` raise.
        """
        if self._before:
            self._reading = asyncio.create_task(self._read(self._opened_store()))
        mark, greeting = asyncio.create_task(self.node.mark()), asyncio.create_task(self.node.greet())
        coming = _Coming(self._name, self.node, wait_s)
        try:
            while not coming.is_over:
                if pack := await coming.pack(TICK_S):
                    self._begin([pack])
                self._incoming.refuse_failed()
                check()
            if coming.manifest is not None:
                await asyncio.wait({mark}, timeout=wait_s)
            if mark.done() and not mark.exception():  # else the caller asks for both, and learns why
                self.mark, self.manifest = mark.result(), coming.manifest
                self._opened_store()
        finally:
            await coming.end()
            await _end([mark, greeting])

    async def begin(self, manifest: Manifest) -> None:
        """Begins to bring all that is left of the image."""
        for file in files_beside(manifest):
            self._beside[file.path] = asyncio.create_task(self.node.small(Path(file.path).name, file.most))
        sent = self._beside[references_file(manifest).path]
        self._begin(manifest.packs)
        self._placing = asyncio.create_task(self._place(self._opened_store(), manifest, sent))

    async def small(self, file: SmallFile) -> bytes | None:
        """Returns a file that was asked for by `begin`, or asks for it. Raises NotSent, PeerUnusable."""
        asked = self._beside.pop(file.path, None)
        return await (asked or self.node.small(Path(file.path).name, file.most))

    async def has_placed(self, references: bytes) -> bool:
        """Returns whether each chunk is where these references say. All packs are here, or it cannot know."""
        if self._placing is None:
            return False
        await asyncio.wait({self._placing})
        return not self._placing.exception() and self._placing.result() == references

    async def end(self) -> None:
        await _end([*self._beside.values(), *(each for each in (self._reading, self._placing) if each)])

    def _begin(self, packs: Sequence[Pack]) -> None:
        for pack in packs:
            self._incoming.begin(self._opened_store(), pack, self.node.name)

    def _opened_store(self) -> Store:
        self._store = self._store or self._opened()
        return self._store

    async def _read(self, store: Store) -> Earlier | None:
        """Reads the last earlier image that is here, if there is one. Raises as `earlier`."""
        found = await self._incoming.works.do(earlier, store, self._before)
        if found:
            self._incoming.know(found.readers)
            log.info("an earlier image was read before %s is there: %d packs", self._name, len(found.readers))
        return found

    async def _earlier(self) -> Earlier | None:
        """Returns the earlier image once it is read; None where there is none that can be read."""
        if self._reading is None:
            return None
        await asyncio.wait({self._reading})
        try:
            return self._reading.result()
        except (Damaged, WrongImage, OSError) as error:  # it only saves time
            log.warning("no earlier image was read: %s", error)
            return None

    async def _place(self, store: Store, manifest: Manifest, sent: "asyncio.Task[bytes | None]") -> bytes:
        """Compares the references with the ends of all packs, while the chunks come. Returns them. Raises Damaged."""
        found, before = await asyncio.shield(sent), await self._earlier()
        readers = [await self._incoming.reader(store, pack) for pack in manifest.packs]
        checked = before.places if before else None
        return await self._incoming.works.do(placed, store, manifest, found, readers, checked)


class _Coming:
    """The packs that a node sends ahead of an image, one after the other, and then the manifest.

    manifest: the bytes of its file, once that is there · is_over: it is there, or the node does not answer
    """

    def __init__(self, name: str, node: Node, wait_s: float) -> None:
        self._name, self._node, self._wait_s = name, node, wait_s
        self.manifest: bytes | None = None
        self.is_over, self._number = False, 1
        self._note, self._there = self._asked_note(), self._asked_manifest()

    async def pack(self, seconds: float) -> Pack | None:
        """Returns the next pack; None where none came for so long, or it is over. Raises PeerUnusable, Damaged."""
        await asyncio.wait({self._note, self._there}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        try:
            if self._there.done():  # it names all packs: the notes that have not come yet need not come
                self.manifest = self._there.result()
                self.is_over = self.manifest is not None
                self._there = self._there if self.is_over else self._asked_manifest()
            elif self._note.done():
                return self._taken(self._note.result())
        except NotSent:  # the caller asks for the image, and learns why
            self.is_over = True
        return None

    def _taken(self, found: bytes | None) -> Pack | None:
        """Returns the pack of a note, and asks for the next one."""
        number = self._number
        self._number += found is not None
        self._note = self._asked_note()
        return found if found is None else ahead.noted(found, f"{self._node.name}/{self._name}.ahead{number}")

    async def end(self) -> None:
        await _end([self._note, self._there])

    def _asked_note(self) -> "asyncio.Task[bytes | None]":
        return self._asked(f"{self._name}.ahead{self._number}", ahead.MOST)

    def _asked_manifest(self) -> "asyncio.Task[bytes | None]":
        return self._asked(f"{self._name}.json", MOST_MANIFEST)

    def _asked(self, name: str, most: int) -> "asyncio.Task[bytes | None]":
        return asyncio.create_task(self._node.small(name, most, self._wait_s))


async def _end(tasks: "Collection[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
