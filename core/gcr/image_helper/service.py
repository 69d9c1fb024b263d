"""The operations of an image helper, one method each; `ImagePeer` is their other end.

A helper writes one image (writing.py): `begin` · (`parent` · `baseline` …) · `lend` … · `write`. Where the host has no
room for the image's bytes: `begin` · `parent` · `lend_ring` … · `take` … · `write`. Or it reads one (reading.py):
`open`, and for each process `lend_slots` · `read` … through memory of a worker's, or `load` · `loaded` … into memory of
its own. Or it looks at a store.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from gcr.errors import PeerGone, UsageError
from gcr.image.disk.durable import sync_images
from gcr.image.disk.failing import usable
from gcr.image.store.location import is_none, without_store
from gcr.image_helper.answering import Answer, store_of, telling
from gcr.image_helper.reading import Reading
from gcr.image_helper.writing import Writing
from gcr.imageerrors import NoSuchImage
from gcr.protocol.channel import Request
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.image")


class ImageService(Struct):
    """One image helper: the image that it writes or reads."""

    writing: Writing = field(default_factory=Writing)
    reading: Reading = field(default_factory=Reading)

    def serve(self, request: Request) -> None:
        body, fds = request.json(), request.take_fds()
        try:
            try:
                answer, given = self._operation(body["op"])(body, fds, request) or ({}, ())
            finally:
                close_all(fds)
            try:
                request.reply_json(answer, given)
            except PeerGone:
                log.info("the caller of %s has gone before its answer", body["op"])
        finally:
            self.writing.lent.unmap()

    def _operation(self, name: str) -> Callable[[Mapping[str, Any], list[int], Request], Answer | None]:
        found = (getattr(part, f"op_{name}", None) for part in (self, self.writing, self.reading))
        operation: Callable[..., Answer | None] | None = next(filter(None, found), None)
        if operation is None:
            raise UsageError(f"an image helper knows no {name!r}")
        return operation

    def finish(self) -> None:
        """Waits until an image that has begun to be written is written; drops one that has not."""
        self.writing.finish()

    def op_manifest(self, body: Mapping[str, Any], fds: list[int], request: Request) -> Answer:
        """Returns the text of a manifest. Raises NoSuchImage, WrongImage, WrongKey, Damaged, StoreUnusable."""
        path = Path(body["store"])
        with usable(path), telling(request, lambda: 0, 0):
            if is_none(path):
                raise without_store(NoSuchImage(f"no image {body['name']!r}"), path)
            return {"text": store_of(body, fds).images.manifest(body["name"]).to_bytes().decode()}, ()

    def op_sync(self, body: Mapping[str, Any], _fds: list[int], _request: Request) -> None:
        """Makes published images outlive a crash of the machine. Raises StoreUnusable."""
        sync_images(Path(body["store"]))

    def op_remove(self, body: Mapping[str, Any], fds: list[int], _request: Request) -> None:
        """Removes an image that a helper published before it died. One that was taken at another time stays."""
        store = store_of(body, fds)
        with usable(store.path), suppress(NoSuchImage):
            found = store.images.manifest(body["name"])
            if found.created == body["created"]:
                store.remove([found.name], seals={found.name: found.seal()})
