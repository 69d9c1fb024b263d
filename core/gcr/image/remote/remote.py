"""A store elsewhere: in a bucket, with the layout of any store under a prefix. One in a folder is read the same way; it
is written to as any store is (folder.py).

Through obstore: one wheel without dependencies for S3, Google Cloud Storage, Azure and folders, which retries, sends in
parts, and lets the interpreter go meanwhile. Credentials and all else that it wants to know it takes from the
environment. It is imported by whoever makes a Remote, not before.

An object appears whole or not at all. S3 takes no request whose bytes have not the SHA-256 that was signed for them,
unless AWS_UNSIGNED_PAYLOAD or AWS_SKIP_SIGNATURE says that nothing is signed.

A bucket has no lock. Who writes anything under the name of an image has made the object `<name>.json.new` before, with
the manifest in it, where no other push has one that says something else; it goes at the end.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gcr.errors import Damaged, ImageExists, LibraryMissing, StoreUnusable, UsageError
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import claim_path, manifest_path
from gcr.image.files.smallfiles import MOST_MANIFEST, manifest_of
from gcr.image.pack.format import SUFFIX as PACK
from gcr.image.pack.format import Footer, Pack
from gcr.image.store.mark import MARK, MOST_MARK
from gcr.image.store.packs import ANOTHER_PACK

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")
_RETRY_S = 30.0  # from the first request to the last try at it; the library's own limit of one is AWS_TIMEOUT, 30 s


class Remote:
    """Thread-safe. Everything raises StoreUnusable where it does not answer, refuses us, or is not there."""

    def __init__(self, url: str, cipher: Cipher = PLAIN) -> None:
        """Nobody is asked for anything yet. Raises UsageError, LibraryMissing."""
        parsed(url)
        self.cipher = cipher
        self.url, self._as_given = url.rstrip("/"), url
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError
        except ImportError as error:
            message = f"a store elsewhere needs the Python module obstore: {error}"
            raise LibraryMissing(message, hint="pip install 'gpu-cr[remote]'") from error
        self._library, self._taken = obstore, AlreadyExistsError
        self._failures = (BaseError, OSError, ValueError)

    @cached_property
    def _objects(self) -> "ObjectStore":
        from obstore.store import from_url

        with self._answering():
            return from_url(
                self._as_given, retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=_RETRY_S)}
            )

    @contextmanager
    def used(self, _name: str) -> Iterator[None]:
        """For writing an image of this name. A bucket has no lock. Raises WrongKey, Damaged, WrongImage."""
        if not self.create(MARK, self.cipher.mark):
            self.check_mark()
        yield

    def address(self, path: str) -> str:
        """What to call it."""
        return f"{self.url}/{path}"

    # ---- images -------------------------------------------------------------------------------------------------

    def check_mark(self) -> None:
        """What is there is encrypted as our store is. Raises WrongKey, Damaged, WrongImage."""
        self.cipher.check_mark(self.read(MARK, MOST_MARK) or b"", self.url)

    def manifest(self, name: str) -> Manifest | None:
        """None: there is no such image. Raises WrongImage, Damaged, UsageError."""
        path = manifest_path(name)
        data = self.read(path, MOST_MANIFEST)
        return None if data is None else manifest_of(name, data, self.cipher, self.address(path))

    def has(self, pack: Pack) -> bool:
        """It has the size and the footer of what the seal vouches for; what is between them nobody has looked at.

        Raises Damaged where its id is that of another pack, which some image may need.
        """
        size = self.size(pack_path(pack))
        if size is None or size < 2 * BLOCK:
            return False
        footer = self.footer(pack, size)
        if footer.is_whole() and footer.seal != pack.seal:
            raise Damaged.of(self.address(pack_path(pack)), ANOTHER_PACK, hint="push to another prefix")
        return size == pack.bytes and footer.is_sealed(pack.seal)

    def footer(self, pack: Pack, size: int) -> Footer:
        """Of what lies there under its id, and has so many bytes. Raises Damaged."""
        return Footer.from_bytes(bytes(self.part(pack_path(pack), size - BLOCK, BLOCK)))

    def write_pack(self, pack: Pack, data: Iterable[bytes], part: int, at_once: int) -> None:
        """Whole, in the place of what is damaged, with so many requests at once of `part` bytes each."""
        with self._answering():
            self._library.put(self._objects, pack_path(pack), data, chunk_size=part, max_concurrency=at_once)

    def claim(self, name: str, manifest: bytes) -> None:
        """From here on nobody writes anything else under this name. `manifest`: as it is stored. Raises ImageExists."""
        path = claim_path(name)
        while not self.create(path, manifest):
            found = self.read(path, MOST_MANIFEST)
            if found == manifest:  # a push of this very image does the same, or died of it
                break
            if found is not None:
                message = f"another image {name!r} is being pushed to {self.url}, or its push was cut short"
                raise ImageExists(message, hint=f"remove {self.address(path)} if nobody is pushing it")

    def release(self, name: str) -> None:
        """What was claimed."""
        with self._answering(), suppress(FileNotFoundError):
            self._library.delete(self._objects, claim_path(name))

    def publish(self, name: str, manifest: bytes) -> bool:
        """As it is stored; all else of it is there. False: there is an image of this name, or another one."""
        return self.create(manifest_path(name), manifest)

    # ---- objects ------------------------------------------------------------------------------------------------

    def read(self, path: str, most: int) -> bytes | None:
        """The whole of one that has so many bytes, or fewer; None: there is no such object. Raises Damaged."""
        with self._answering():
            try:
                return self._whole(path, most)
            except FileNotFoundError:
                self._refuse_nowhere()
                return None

    def size(self, path: str) -> int | None:
        """Bytes; None: there is no such object."""
        with self._answering():
            try:
                return self._length(path)
            except FileNotFoundError:
                return None

    def part(self, path: str, at: int, size: int) -> memoryview:
        """Of an object that is so long. Raises Damaged where it no longer is."""
        with self._answering():
            found = self._range(path, at, size)
        if len(found) != size:
            raise Damaged.of(self.address(path), "it is shorter than what was pushed", hint="push it again")
        return found

    def write(self, path: str, data: bytes) -> None:
        """In the place of what is there."""
        with self._answering():
            self._library.put(self._objects, path, data)

    def create(self, path: str, data: bytes) -> bool:
        """False: there is such an object. Of several who try one succeeds, where the store knows conditional writes."""
        with self._answering():
            try:
                self._library.put(self._objects, path, data, mode="create")
            except self._taken:
                return False
        return True

    # What a store in a folder does by itself. Raises FileNotFoundError, Damaged, and what `_answering` knows.

    def _whole(self, path: str, most: int) -> bytes:
        found = self._library.get(self._objects, path)
        if found.meta["size"] > most:
            raise Damaged.of(self.address(path), f"it has more than {most} bytes")
        return bytes(found.bytes())

    def _length(self, path: str) -> int:
        return self._library.head(self._objects, path)["size"]

    def _range(self, path: str, at: int, size: int) -> memoryview:
        return memoryview(self._library.get_range(self._objects, path, start=at, length=size))

    def _refuse_nowhere(self) -> None:
        """There is no such bucket, which is an error."""
        next(iter(self._library.list(self._objects)), None)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            said = str(error).partition("\n")[0].partition(": <?xml")[0]  # the rest is for who debugs the library
            hint = _PLAIN_HTTP if _needs_plain_http(self.url) else _HINT
            raise StoreUnusable(f"{self.url} cannot be used: {said}", hint=hint) from error


_PLAIN_HTTP = "the address is http://, which goes unencrypted and must be allowed: AWS_ALLOW_HTTP=true"
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_HINT = "address and credentials are in the environment: docs/image-format.md#stores-elsewhere"


def _needs_plain_http(url: str) -> bool:
    """The environment names a server that is spoken to without TLS, and does not allow that."""
    plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    return url.startswith("s3://") and plain and os.environ.get("AWS_ALLOW_HTTP", "").lower() not in ("1", "true")


def pack_path(pack: Pack) -> str:
    return f"packs/{pack.id}{PACK}"


def parsed(url: str) -> SplitResult:
    """Raises UsageError. What may hold a password is not repeated."""
    try:
        found = urlsplit(url)
    except ValueError as error:
        raise UsageError(f"that is no URL: {error}") from error
    if "@" in found.netloc or found.query or found.fragment:
        raise UsageError("a URL of a store has no user, password, query or fragment", hint=_HINT)
    if (
        found.scheme not in SCHEMES
        or bool(found.netloc) is (found.scheme == "file")
        or not (found.netloc or found.path)
    ):
        raise UsageError(f"{url!r} is no URL of a store", hint="s3://bucket/prefix, gs://…, az://…, file:///folder")
    return found
