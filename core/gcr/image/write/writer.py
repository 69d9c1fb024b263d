"""Writes an image in one process: all of its chunks, then its manifest."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from gcr.hashing import HashKey
from gcr.image.disk.failing import usable
from gcr.image.files import ahead
from gcr.image.files.manifest import Manifest
from gcr.image.store.claim import Claim
from gcr.image.write.newpacks import MOST
from gcr.image.write.part import PartWriter
from gcr.image.write.placing import Placed
from gcr.image.write.publishing import Contents, publish
from gcr.image.write.stretches import NamedPiece, NamedStretch

AHEAD_BYTES = 64 << 20  # of files that go ahead together; another node has the most of them before the image is there


@dataclass(slots=True)
class ImageWriter(PartWriter):
    """Writes one image. Leaving the `with` block without `commit` leaves no image.

    `key`: that of the chain which the image continues, set before anything is added; else a new chain begins.
    Entering raises ImageExists; everything raises StoreUnusable if the disk is full, fails, or is gone.
    """

    key: HashKey = field(default_factory=HashKey.random)
    _claim: Claim = field(init=False)
    _ahead: int = 0  # packs that are noted
    _sent: int | None = None  # bytes in these; None where no pack is sent ahead

    def _hold(self, begun: ExitStack) -> None:
        self.store.sweep()
        PartWriter._hold(self, begun)  # super() does not know a class with slots
        self._claim = begun.enter_context(self.store.claimed(self.name))

    def send_ahead(self) -> None:
        """Offers what was added to other nodes, before there is an image (files/ahead.py), and what follows in parts.

        No chunk is placed meanwhile. Raises StoreUnusable.
        """
        with usable(self.store.path):
            for pack in self._turn() if self._ahead + MOST <= ahead.MOST_PACKS else ():
                self._ahead += 1
                ahead.note(self.store.path, self.name, self._ahead, pack)
            self._sent = self.counts.written

    def _place(self, waiting: list[NamedPiece], named: Sequence[NamedStretch]) -> Placed | None:
        """Sends ahead what was placed before, once it is enough: chunks are named meanwhile."""
        if self._sent is not None and self.counts.written - self._sent >= AHEAD_BYTES:
            self.send_ahead()
        return PartWriter._place(self, waiting, named)

    def commit(self, described: Callable[[Contents], Manifest]) -> Manifest:
        """Publishes the image, once; it outlives any crash when this returns. `described` makes its manifest."""
        with usable(self.store.path):
            if self._sent is not None:
                self.send_ahead()  # another node has the last packs while the files beside the manifest are written
            return publish(self.store, self._claim, self.finish(), self.key, described)
