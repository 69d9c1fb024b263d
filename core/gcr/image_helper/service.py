"""The operations that an image helper offers its daemon, put together; `ImagePeer` is their other end.

A helper writes one image (writing.py): `begin` · (`parent` · `baseline` …) · `lend` … · `write`. Where the host has no
room for the image's bytes: `begin` · `parent` · `lend_ring` … · `take` … · `write`. Or it reads one (reading.py):
`open`, and for each process `lend_slots` · `read` … through memory of a worker's, or `load` · `loaded` … into memory of
its own. Or it looks at a store.
"""

import logging
from contextlib import suppress
from pathlib import Path

from gcr.errors import PeerGone
from gcr.image.disk.durable import sync_images
from gcr.image.disk.failing import usable
from gcr.image.store.location import is_none, without_store
from gcr.image_helper.answering import store_of, telling
from gcr.image_helper.parts import OF_PARTS
from gcr.image_helper.reading import Reading
from gcr.image_helper.writing import Writing
from gcr.imageerrors import NoSuchImage
from gcr.protocol.channel import Request
from gcr.protocol.operations import image as ops
from gcr.protocol.operations.operation import Answer, Dispatcher, Handlers

log = logging.getLogger("gcr.image")


class ImageService:
    """One image helper: the image that it writes or reads."""

    def __init__(self) -> None:
        self.writing, self.reading = Writing(), Reading()
        handlers = OF_STORES | OF_PARTS | self.writing.operations() | self.reading.operations()
        self.operations = Dispatcher("an image helper", handlers)

    def serve(self, request: Request) -> None:
        try:
            self.operations.serve(request)
        except PeerGone:
            log.info("the caller has gone before its answer")
        finally:
            self.writing.lent.unmap()

    def finish(self) -> None:
        """Waits until an image that has begun to be written is written; drops one that has not."""
        self.writing.finish()


def _manifest(asked: ops.ReadManifest, fds: list[int], request: Request) -> ops.ManifestText:
    """Returns the text of a manifest. Raises NoSuchImage, WrongImage, WrongKey, Damaged, StoreUnusable."""
    path = Path(asked.store)
    with usable(path), telling(request, lambda: 0, 0):
        if is_none(path):
            raise without_store(NoSuchImage(f"no image {asked.name!r}"), path)
        return ops.ManifestText(store_of(asked, fds).images.manifest(asked.name).to_bytes().decode())


def remove(asked: ops.Remove, fds: list[int]) -> None:
    """Removes an image that a helper published before it died. One that was taken at another time stays."""
    store = store_of(asked, fds)
    with usable(store.path), suppress(NoSuchImage):
        found = store.images.manifest(asked.name)
        if found.created == asked.created:
            store.remove([found.name], seals={found.name: found.seal()})


OF_STORES: Handlers = {
    ops.ReadManifest: lambda asked, fds, request: Answer(_manifest(asked, fds, request)),
    ops.Sync: lambda asked, _fds, _request: sync_images(Path(asked.store)),
    ops.Remove: lambda asked, fds, _request: remove(asked, fds),
}
