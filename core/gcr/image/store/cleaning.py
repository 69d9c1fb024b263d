"""Removes the files that no image needs: what writers that died have left, and packs."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from gcr.image.disk.durable import sync, unlink
from gcr.image.files.names import root_path
from gcr.image.store.images import Images
from gcr.image.store.leftovers import is_resumable, unfinished, unneeded
from gcr.image.store.packs import Packs


class Cleaner(Struct, frozen=True):
    """Removes files of one store. The caller holds the store's lock alone, except for `unlink_images`."""

    images: Images
    packs: Packs

    def clean(self, needed: Collection[str]) -> int:
        """Removes all that is unfinished, and the packs that are not `needed`, by id. Returns the bytes freed."""
        return sum(map(self._unlink, unneeded(self.packs.folder, self.images.folder, {*self.images.names()}, needed)))

    def unlink_images(self, names: Iterable[str]) -> None:
        """Removes the manifests of these images, and their roots: from then on there are no such images."""
        for name in names:
            (self.images.store / root_path(name)).unlink(missing_ok=True)
            self.images.path(name).unlink(missing_ok=True)
            self.images.pulse()
        sync(self.images.folder)

    def abandoned(self) -> Iterator[Path]:
        """Yields what writers that died have left, except what the next pull takes up."""
        return (path for path in self._unfinished() if not is_resumable(path))

    def _unfinished(self) -> Iterator[Path]:
        return unfinished(self.packs.folder, self.images.folder, {*self.images.names()})

    def _unlink(self, path: Path) -> int:
        """Returns the bytes freed."""
        self.images.pulse()
        return unlink(path)
