"""Parts of images over nodes in a store: each is an image, with the root (gcr.cutroot) of the whole beside it.

The root is written as `<part>.cut.new`, synced, renamed to `<part>.cut`, and its directory is synced. A part is removed
root first, so a root that is there has had its part when it was written.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from gcr.cutroot import MOST, Root, image_of
from gcr.image.disk.durable import sync, write_file
from gcr.image.disk.regular import read_file
from gcr.image.files.manifest import Cut, Manifest
from gcr.image.files.names import new_root_path, root_path
from gcr.image.files.roots import is_part, root_in
from gcr.image.store.images import Images
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

log = logging.getLogger(__name__)


class StoredPart(Struct, frozen=True):
    """A part that can be read, and its root: None where there is none, or where it is not this part's."""

    manifest: Manifest
    root: Root | None

    @property
    def seal(self) -> str:
        return self.manifest.seal().hex()

    @property
    def bytes(self) -> int:
        return self.manifest.costs.bytes_total

    @property
    def is_whole(self) -> bool:
        return self.manifest.cut is Cut.PROCESS


class Roots(Struct, frozen=True):
    """The roots of one store."""

    images: Images

    def of(self, manifest: Manifest) -> Root | None:
        """Returns the root of which the image is a part; None for any other image, and for a root that is damaged.

        Raises OSError.
        """
        path = self.images.store / root_path(manifest.name)
        try:
            return root_in(read_file(path, MOST), manifest, path)
        except FileNotFoundError:
            return None
        except Damaged as error:  # other nodes have the same
            log.warning("%s", error)
            return None

    def parts(self, image: str | None, job: str | None) -> Iterator[StoredPart]:
        """Yields the parts of an image over nodes, or those of a job that have a root. One that is damaged is left out.

        Raises StoreUnusable, OSError.
        """
        for name in self.images.names():
            whole = image_of(name)
            if whole is None or (image is not None and whole != image):
                continue
            if image is None and not os.path.lexists(self.images.store / root_path(name)):
                continue
            with suppress(NoSuchImage, WrongImage, Damaged):
                manifest = self.images.manifest(name)
                if job in (None, manifest.source.job):
                    yield StoredPart(manifest, self.of(manifest))

    def keep(self, root: Root, part: str) -> None:
        """Writes the root beside the part of this name; it outlives any crash on return.

        Raises NoSuchImage, WrongImage where the image of this name is none of its parts; Damaged, OSError.
        """
        if not is_part(self.images.manifest(part), root):
            raise WrongImage(f"image {part} of this store is no part of cut {root.cut}", hint="gcr images")
        new, final = (self.images.store / path(part) for path in (new_root_path, root_path))
        write_file(new, root.to_text().encode())
        new.rename(final)
        sync(self.images.folder)

    def older(self, image: str, cut: str) -> Iterator[Manifest]:
        """Yields the parts of an image that are older than that of `cut`, of the same job, if the root of that is here.

        A part without a root counts as well: its cut was given up, or other nodes have the root.
        """
        found = [*self.parts(image, None)]
        kept = [part.manifest for part in found if part.root and part.root.cut == cut]
        if not kept:
            return
        names, before, job = {each.name for each in kept}, min(each.created for each in kept), kept[0].source.job
        for each in (part.manifest for part in found):
            if each.name not in names and each.source.job == job and each.created < before:
                yield each
