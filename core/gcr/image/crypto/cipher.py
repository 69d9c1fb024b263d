"""The ciphers of stores: none (`PLAIN`), or AES-256-GCM with the user's key (aes.py).

A store is encrypted as a whole or not at all. Its mark, the file `gcr-store`, says which. It is empty, or

    GCRSTORE | version (u32) | zeros (4) | check (32) | BLAKE3 of these 48 bytes (32)          little-endian

`check` is derived from the key and does not reveal it. With it a wrong key is refused before anything is touched. All
stores of one key have the same mark, and images can be moved between them.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from gcr.image.chunks.chunk import name_of, name_of_zeros, names_of
from gcr.image.chunks.entry import PLACED, Entry, as_stored
from gcr.image.disk.bounce import move_each
from gcr.imageerrors import Damaged, WrongImage, WrongKey

FILE_MAGIC = b"GCRFILE\0"  # begins any small file of an encrypted store
PACK_VERSIONS = (1, 2, 3, 4)  # plain, encrypted; and the same with compressed chunks
COMPRESSED = 2  # this much higher is the version of a pack with compressed chunks
_MARK = Struct("<8sI4x32s")
_MARK_MAGIC, _MARK_VERSION = b"GCRSTORE", 1
_HOW = "--key-file, --key-command, or the settings of these names"


class Forged(Exception):
    """Bytes were not written with this key for this purpose. The text names them."""


class Lying(Protocol):
    """Chunks that lie one behind the other in a pack. `entries`: with the sizes that they have there."""

    @property
    def entries(self) -> Sequence[Entry]: ...

    def chunks(self, blocks: memoryview) -> Sequence[memoryview]:
        """Returns the bytes of each chunk; in `blocks` the chunks lie as in the pack."""


class PackCipher(Protocol):
    """The cipher of one pack. Thread-safe. `from_disk` and `from_index` raise Forged."""

    version: int
    is_plain: bool  # chunks lie on the disk as they are
    record: Struct  # of one chunk in an index: name, block, bytes, and the tag in an encrypted one

    def to_disk(self, entries: Sequence[Entry], data: Sequence[memoryview], stored: memoryview) -> None:
        """Puts chunks into `stored` as they lie in the pack, one behind the other; it is a block longer at least."""

    def from_disk(self, run: Lying, stored: memoryview) -> memoryview:
        """Returns the chunks of a run that lie in `stored`, each at the same place, with any bytes between them.

        They overwrite those that this thread was given before.
        """

    def index_bytes(self, count: int) -> int:
        """Returns the size of the index of so many chunks."""

    def to_index(self, placed: bytes, facts: bytes, beside: bytes = b"") -> bytes:
        """Returns the index of records as PLACED, back to back. `facts`: the rest of the footer; `beside`: follows."""

    def from_index(self, index: bytes, facts: bytes) -> bytes:
        """Returns the records, back to back, and what stands beside them."""


class Cipher(Protocol):
    """The cipher of one store. Thread-safe."""

    mark: bytes

    def name_of(self, data: bytes | bytearray | memoryview) -> bytes:
        """Returns the name of a chunk; other threads run meanwhile."""

    def names_of(self, memory: memoryview, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
        """Returns the names of chunks, one behind the other; see gcr.image.chunks.chunk."""

    def name_of_zeros(self, size: int) -> bytes: ...

    def encrypt(self, file: str, data: bytes) -> bytes:
        """Returns a small file as it is stored. `file`: its path in the store; it can be read under no other."""

    def decrypt(self, file: str, data: bytes, address: object) -> bytes:
        """Returns what a small file says. `address`: names it in errors. Raises Damaged, WrongImage."""

    def pack(self, pack_id: str) -> PackCipher: ...

    def check_mark(self, found: bytes, store: object) -> None:
        """Raises WrongKey for the mark of a store with another key, or none; Damaged, WrongImage."""


class PlainPack:
    version = 1
    is_plain = True
    record = PLACED

    def to_disk(self, entries: Sequence[Entry], data: Sequence[memoryview], stored: memoryview) -> None:
        pieces = as_stored(entries, stored)
        move_each([blocks[: entry.size] for entry, blocks in zip(entries, pieces, strict=True)], data)
        for entry, blocks in zip(entries, pieces, strict=True):
            blocks[entry.size :] = bytes(len(blocks) - entry.size)

    def from_disk(self, run: Lying, stored: memoryview) -> memoryview:
        return stored

    def index_bytes(self, count: int) -> int:
        return count * self.record.size

    def to_index(self, placed: bytes, facts: bytes, beside: bytes = b"") -> bytes:
        return placed + beside

    def from_index(self, index: bytes, facts: bytes) -> bytes:
        return index


class Plain:
    """The cipher of stores that are not encrypted."""

    mark = b""

    def name_of(self, data: bytes | bytearray | memoryview) -> bytes:
        return name_of(data)

    def names_of(self, memory: memoryview, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
        return names_of(memory, starts, sizes)

    def name_of_zeros(self, size: int) -> bytes:
        return name_of_zeros(size)

    def encrypt(self, file: str, data: bytes) -> bytes:
        return data

    def decrypt(self, file: str, data: bytes, address: object) -> bytes:
        if data.startswith(FILE_MAGIC):
            raise Damaged.of(address, "it is encrypted, and its store is not")
        return data

    def pack(self, pack_id: str) -> PackCipher:
        return PlainPack()

    def check_mark(self, found: bytes, store: object) -> None:
        if found:
            check_of(found, store)
            raise WrongKey(f"{store} is encrypted, and no key was given", hint=_HOW)


PLAIN = Plain()


def mark_of(check: bytes) -> bytes:
    """Returns the mark of an encrypted store."""
    facts = _MARK.pack(_MARK_MAGIC, _MARK_VERSION, check)
    return facts + name_of(facts)


def check_of(mark: bytes, store: object) -> bytes:
    """Returns the check in the mark of an encrypted store. Raises Damaged, WrongImage."""
    facts, digest = mark[: _MARK.size], mark[_MARK.size :]
    if name_of(facts) != digest:
        raise Damaged.of(store, "its mark is not what was written", hint="any store of the same key has the same mark")
    magic, version, check = _MARK.unpack(facts)
    if magic != _MARK_MAGIC or version != _MARK_VERSION:
        raise WrongImage(f"{store}: a store of version {version}; this gcr reads {_MARK_VERSION}")
    return bytes(check)
