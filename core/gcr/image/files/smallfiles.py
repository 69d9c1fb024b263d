"""The small files of an image: the manifest, and the references and hashes that it vouches for.

References and hashes are read from a disk, sent elsewhere, and brought back. Each time they are compared with the
manifest's digest and size, here.
"""

from array import array
from collections.abc import Mapping
from itertools import accumulate

from msgspec import Struct

from gcr.hashing.chunks import CHUNK_BYTES, DIGEST_BYTES, chunk_count
from gcr.hashing.key import SECRET_BYTES
from gcr.image.chunks.chunk import name_of
from gcr.image.crypto.cipher import Cipher
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import hashes_path, manifest_path, references_path
from gcr.image.files.references import RECORD_BYTES
from gcr.imageerrors import Damaged

MOST_MANIFEST = 64 << 20  # bytes, for about 100,000 allocations
MOST_BESIDE = 1 << 30  # bytes of references, or of hashes, for an image of 6 TiB
_MOST_OVERHEAD = 64  # bytes that encryption adds to a small file


class SmallFile(Struct, frozen=True):
    """A file beside a manifest, which has its digest. `path`: in the store. `size`: bytes, decrypted."""

    path: str
    digest: bytes
    size: int

    @property
    def most(self) -> int:
        """Returns the most bytes that the file has in a store; a reader takes no more."""
        return min(self.size, MOST_BESIDE) + _MOST_OVERHEAD

    def said(self, stored: bytes | None, cipher: Cipher, address: object) -> bytes:
        """Returns the decrypted bytes of the file `stored` at `address`, None: no file. Raises Damaged, WrongImage."""
        if stored is None:
            raise Damaged.of(address, "it is not there")
        data = cipher.decrypt(self.path, stored, address)
        if name_of(data) != self.digest:
            raise Damaged.of(address, "it is not what was written")
        if len(data) != self.size:
            raise Damaged.of(address, "it has another number of chunks than the image")
        return data


def references_file(manifest: Manifest) -> SmallFile:
    return SmallFile(references_path(manifest.name), manifest.beside.chunks, _chunks_of(manifest) * RECORD_BYTES)


def hashes_file(manifest: Manifest) -> SmallFile:
    hashed = 0 if manifest.source.progress else _chunks_of(manifest)  # no device hashed what a training saved
    size = SECRET_BYTES + hashed * DIGEST_BYTES
    return SmallFile(hashes_path(manifest.name), manifest.beside.hashes, size)


def files_beside(manifest: Manifest) -> tuple[SmallFile, SmallFile]:
    return references_file(manifest), hashes_file(manifest)


def manifest_of(name: str, stored: bytes, cipher: Cipher, address: object) -> Manifest:
    """Returns the manifest of the image `name`, of the bytes `stored` at `address`. Raises Damaged, WrongImage."""
    found = Manifest.from_bytes(cipher.decrypt(manifest_path(name), stored, address), address)
    if found.name != name:
        raise Damaged.of(address, f"it is the manifest of {found.name}")
    return found


def chunk_sizes(manifest: Manifest) -> "array[int]":
    """Returns the size of each chunk, in the order of the references, which must be as many."""
    found, whole = array("I"), array("I", [manifest.chunk_bytes])
    for process in manifest.processes:
        for handle in process.table.handles:
            _cut(found, handle.spec.size, whole)
    for file in manifest.files:
        if file.sizes:
            found.extend(file.sizes)
        else:
            _cut(found, file.bytes, whole)
    return found


def _cut(sizes: "array[int]", size: int, whole: "array[int]") -> None:
    """Adds the sizes of the chunks of so many bytes; `whole`: that of a whole chunk."""
    count, rest = divmod(size, whole[0])
    sizes.extend(whole * count)
    if rest:
        sizes.append(rest)


def files_of(manifest: Manifest) -> Mapping[str, tuple[int, ImagedFile]]:
    """Returns the files by name, each with the number of its first chunk's reference."""
    counts = [file.chunk_count(manifest.chunk_bytes) for file in manifest.files]
    firsts = accumulate(counts, initial=_chunks_of_memory(manifest))
    return {file.name: (first, file) for file, first in zip(manifest.files, firsts, strict=False)}


def least_bytes(total: int) -> int:
    """Returns the least bytes of an image of so much memory: the names and hashes of its chunks.

    The bytes of the chunks are not known before: zeros, and chunks that the store has, are not written.
    """
    return total // CHUNK_BYTES * (RECORD_BYTES + DIGEST_BYTES)


def _chunks_of(manifest: Manifest) -> int:
    of_files = sum(file.chunk_count(manifest.chunk_bytes) for file in manifest.files)
    return _chunks_of_memory(manifest) + of_files


def _chunks_of_memory(manifest: Manifest) -> int:
    handles = (handle for process in manifest.processes for handle in process.table.handles)
    return sum(chunk_count(handle.spec.size, manifest.chunk_bytes) for handle in handles)
