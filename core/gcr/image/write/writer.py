"""Writes an image in one process: all of its chunks, then its manifest."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from gcr.hashing import HashKey
from gcr.image.disk.failing import usable
from gcr.image.files.manifest import Manifest
from gcr.image.store.claim import Claim
from gcr.image.write.part import PartWriter
from gcr.image.write.publishing import Contents, publish


@dataclass(slots=True)
class ImageWriter(PartWriter):
    """Writes one image. Leaving the `with` block without `commit` leaves no image.

    `key`: that of the chain which the image continues, set before anything is added; else a new chain begins.
    Entering raises ImageExists; everything raises StoreUnusable if the disk is full, fails, or is gone.
    """

    key: HashKey = field(default_factory=HashKey.random)
    _claim: Claim = field(init=False)

    def _hold(self, begun: ExitStack) -> None:
        self.store.sweep()
        PartWriter._hold(self, begun)  # super() does not know a class with slots
        self._claim = begun.enter_context(self.store.claimed(self.name))

    def commit(self, described: Callable[[Contents], Manifest]) -> Manifest:
        """Publishes the image, once; it outlives any crash when this returns. `described` makes its manifest."""
        with usable(self.store.path):
            return publish(self.store, self._claim, self.finish(), self.key, described)
