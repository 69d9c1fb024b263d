"""An image that a node is making just now: the packs that it sends ahead, one after the other, and then the image."""

import asyncio

from gcr.image.exchange.giver import Node
from gcr.image.exchange.lines import NotSent
from gcr.image.files import ahead
from gcr.image.files.smallfiles import MOST_MANIFEST
from gcr.image.pack.format import Pack


class Coming:
    """The packs of one image. All calls within one event loop; `end` it."""

    def __init__(self, name: str, node: Node, wait_s: float) -> None:
        """`wait_s`: seconds that one answer of the node may take."""
        self._name, self._node, self._wait_s = name, node, wait_s
        self._there: asyncio.Task[bytes | None] | None = None

    async def pack(self, number: int) -> Pack | bool:
        """Returns the number-th pack, from 1 on; False once the image is there, or the node does not answer.

        Returns True where neither came for a while. Raises PeerUnusable, Damaged.
        """
        asked = self._ask(f"{self._name}.ahead{number}", ahead.MOST)
        self._there = self._there or self._ask(f"{self._name}.json", MOST_MANIFEST)
        try:
            await asyncio.wait({asked, self._there}, return_when=asyncio.FIRST_COMPLETED)
            if self._there.done() and self._there.result() is None:
                self._there = None
                await asyncio.wait({asked})
            if asked.done() and (found := asked.result()) is not None:
                return ahead.noted(found, f"{self._node.name}/{self._name}.ahead{number}")
            return self._there is None or not self._there.done()
        except NotSent:
            return False  # the caller asks for the image, and learns why
        finally:
            await _over(asked)

    async def end(self) -> None:
        if self._there:
            await _over(self._there)

    def _ask(self, name: str, most: int) -> "asyncio.Task[bytes | None]":
        return asyncio.create_task(self._node.small(name, most, self._wait_s))


async def _over(task: "asyncio.Task[bytes | None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
