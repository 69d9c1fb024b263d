"""A store elsewhere: in a bucket, with the layout of any store under a prefix. A store in a folder is read the same
way, but written as any store is (folder.py).

The library is obstore: one wheel without dependencies for S3, Google Cloud Storage, Azure and folders. It retries,
sends in parts, and lets other threads run meanwhile. It takes credentials and settings from the environment. It is
imported when a Remote is made, not before.

An object appears whole or not at all. S3 takes a request only if its bytes have the SHA-256 that was signed for them,
unless AWS_UNSIGNED_PAYLOAD or AWS_SKIP_SIGNATURE turns signatures off.

A bucket has no lock. So a push first makes the object `<name>.json.new`, which holds the manifest, and removes it at
the end. It is refused if another push has made that object with another manifest.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gcr.errors import LibraryMissing, UsageError
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import claim_path, manifest_path
from gcr.image.files.smallfiles import MOST_MANIFEST, manifest_of
from gcr.image.pack.format import SUFFIX as PACK
from gcr.image.pack.format import Footer, Pack
from gcr.image.store.mark import MARK, MOST_MARK
from gcr.image.store.packs import ANOTHER_PACK
from gcr.imageerrors import Damaged, ImageExists, StoreUnusable

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")
_RETRY_S = 30.0  # from the first try of a request to the last; AWS_TIMEOUT, 30 s, limits each try


class Remote:
    """A store elsewhere. Thread-safe. Calls raise StoreUnusable if it does not answer, refuses, or is not there."""

    def __init__(self, url: str, cipher: Cipher = PLAIN) -> None:
        """Sends no request yet. Raises UsageError, LibraryMissing."""
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
        """Prepares to write an image of this name: marks or checks the store. Raises WrongKey, Damaged, WrongImage."""
        if not self.create(MARK, self.cipher.mark):
            self.check_mark()
        yield

    def address(self, path: str) -> str:
        """Returns the address of an object, for errors."""
        return f"{self.url}/{path}"

    # ---- images -------------------------------------------------------------------------------------------------

    def check_mark(self) -> None:
        """Raises WrongKey unless the store there has our cipher; Damaged, WrongImage."""
        self.cipher.check_mark(self.read(MARK, MOST_MARK) or b"", self.url)

    def manifest(self, name: str) -> Manifest | None:
        """Returns None without such an image. Raises WrongImage, Damaged, UsageError."""
        path = manifest_path(name)
        data = self.read(path, MOST_MANIFEST)
        return None if data is None else manifest_of(name, data, self.cipher, self.address(path))

    def has(self, pack: Pack) -> bool:
        """Returns whether the pack is there, judged by its size and footer; the bytes between are not compared.

        Raises Damaged if another pack has its id, since an image may need that one.
        """
        size = self.size(pack_path(pack))
        if size is None or size < 2 * BLOCK:
            return False
        footer = self.footer(pack, size)
        if footer.is_whole() and footer.seal != pack.seal:
            raise Damaged.of(self.address(pack_path(pack)), ANOTHER_PACK, hint="push to another prefix")
        return size == pack.bytes and footer.is_sealed(pack.seal)

    def footer(self, pack: Pack, size: int) -> Footer:
        """Returns the footer of the object with the pack's id, which has `size` bytes. Raises Damaged."""
        return Footer.from_bytes(bytes(self.part(pack_path(pack), size - BLOCK, BLOCK)))

    def write_pack(self, pack: Pack, data: Iterable[bytes], part: int, at_once: int) -> None:
        """Writes a pack as a whole, replacing a damaged one; `at_once` requests of `part` bytes are in flight."""
        with self._answering():
            self._library.put(self._objects, pack_path(pack), data, chunk_size=part, max_concurrency=at_once)

    def claim(self, name: str, manifest: bytes) -> None:
        """Claims the name for the image with this stored manifest. Raises ImageExists if another one has the claim."""
        path = claim_path(name)
        while not self.create(path, manifest):
            found = self.read(path, MOST_MANIFEST)
            if found == manifest:  # a push of this very image does the same, or died of it
                break
            if found is not None:
                message = f"another image {name!r} is being pushed to {self.url}, or its push was cut short"
                raise ImageExists(message, hint=f"remove {self.address(path)} if no push is under way")

    def release(self, name: str) -> None:
        """Removes the claim."""
        with self._answering(), suppress(FileNotFoundError):
            self._library.delete(self._objects, claim_path(name))

    def publish(self, name: str, manifest: bytes) -> bool:
        """Writes the stored manifest; all other files are there. Returns False if an image has this name already."""
        return self.create(manifest_path(name), manifest)

    # ---- objects ------------------------------------------------------------------------------------------------

    def read(self, path: str, most: int) -> bytes | None:
        """Returns an object, or None if there is none. Raises Damaged for one of more than `most` bytes."""
        with self._answering():
            try:
                return self._whole(path, most)
            except FileNotFoundError as error:
                self._refuse_nowhere(error)
                return None

    def size(self, path: str) -> int | None:
        """Returns the bytes of an object, or None if there is none."""
        with self._answering():
            try:
                return self._length(path)
            except FileNotFoundError:
                return None

    def part(self, path: str, at: int, size: int) -> memoryview:
        """Returns some bytes of an object. Raises Damaged if it is too short by now."""
        with self._answering():
            found = self._range(path, at, size)
        if len(found) != size:
            raise Damaged.of(self.address(path), "it is shorter than what was pushed", hint="push it again")
        return found

    def write(self, path: str, data: bytes) -> None:
        """Writes an object, replacing what is there."""
        with self._answering():
            self._library.put(self._objects, path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Writes a new object; returns False if there is one. One of several writers succeeds.

        The server must know conditional writes for that.
        """
        with self._answering():
            try:
                self._library.put(self._objects, path, data, mode="create")
            except self._taken:
                return False
        return True

    # A folder has its own versions of these. They raise FileNotFoundError, Damaged, and errors that `_answering` knows.

    def _whole(self, path: str, most: int) -> bytes:
        found = self._library.get(self._objects, path)
        if found.meta["size"] > most:
            raise Damaged.of(self.address(path), f"it has more than {most} bytes")
        return bytes(_beginning(found, found.meta["size"]))

    def _length(self, path: str) -> int:
        return self._library.head(self._objects, path)["size"]

    def _range(self, path: str, at: int, size: int) -> memoryview:
        return _beginning(self._library.get(self._objects, path, options={"range": (at, at + size)}), size)

    def _refuse_nowhere(self, error: FileNotFoundError) -> None:
        """Raises the error unless it says that only the object is missing: the bucket or the address may be wrong.

        The bucket is not listed. A server may answer that with empty pages for ever, or with a body of any length.
        """
        said = str(error).partition("404 Not Found: ")[2].partition(_DEBUG)[0]
        if said and not any(f"<Code>{code}</Code>" in said for code in _MISSING):
            raise error

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            said = str(error).partition("\n")[0].partition(": <?xml")[0]  # the rest is for developers of the library
            raise StoreUnusable(f"{self.url} cannot be used: {said}", hint=_hint(self.url)) from error


def _beginning(found: "GetResult", size: int) -> memoryview:
    """Returns so many bytes, or fewer. It reads no more of a longer answer, and makes no room for that."""
    first = next(iter(found.stream(min_chunk_size=max(size, 1))), b"")
    return memoryview(first)[:size]


_MISSING = ("NoSuchKey", "BlobNotFound")  # the codes of S3 and Google Cloud Storage, and of Azure
_DEBUG = "\n\nDebug source:"
_PLAIN_HTTP = "the address is http://, which goes unencrypted and must be allowed: AWS_ALLOW_HTTP=true"
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_NO_FOLDER = "is its disk there? gcr push makes the folder"
_HINT = "address and credentials are in the environment: docs/image-format.md#stores-elsewhere"


def _hint(url: str) -> str:
    if url.startswith("file://"):
        return _NO_FOLDER
    return _PLAIN_HTTP if _needs_plain_http(url) else _HINT


def _needs_plain_http(url: str) -> bool:
    """Returns whether the environment names a server without TLS, and does not allow that."""
    plain = any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)
    return url.startswith("s3://") and plain and os.environ.get("AWS_ALLOW_HTTP", "").lower() not in ("1", "true")


def pack_path(pack: Pack) -> str:
    return f"packs/{pack.id}{PACK}"


def parsed(url: str) -> SplitResult:
    """Raises UsageError; the error does not repeat a URL that may hold a password."""
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
