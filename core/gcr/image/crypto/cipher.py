"""What keeps the bytes of a store from others: nothing (`PLAIN`), or AES-256-GCM with a key of the user's (aes.py).

A store is encrypted as a whole or not at all. Its mark, the file `gcr-store`, says which: it is empty, or

    GCRSTORE | version (u32) | zeros (4) | check (32) | BLAKE3 of these 48 bytes (32)          little-endian

`check` is made of the key and tells nothing of it: whoever has another one is told so before anything is touched. It is
the same in all stores of one key, and what is in one can be moved to another.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from gcr.errors import Damaged, WrongImage, WrongKey
from gcr.image.chunks.chunk import name_of, name_of_zeros
from gcr.image.chunks.entry import PLACED, Entry, as_stored
from gcr.image.disk.bounce import move_each

FILE_MAGIC = b"GCRFILE\0"  # begins any small file of an encrypted store
PACK_VERSIONS = (1, 2)  # as it is, encrypted
_MARK = Struct("<8sI4x32s")
_MARK_MAGIC, _MARK_VERSION = b"GCRSTORE", 1
_HOW = "--key-file, --key-command, or the settings of these names"


class Forged(Exception):
    """It was not written with the key, as that, there. The text says what."""


class PackCipher(Protocol):
    """Of one pack. Thread-safe. Whatever reads raises Forged."""

    version: int
    record: Struct  # of one chunk in an index: name, block, bytes, and a tag where there are such

    def to_disk(self, entries: Sequence[Entry], data: Sequence[memoryview], stored: memoryview) -> None:
        """Into `stored`, chunks as they lie in the pack, one behind the other; it has at least a block more."""

    def from_disk(self, entries: Sequence[Entry], stored: memoryview) -> Sequence[memoryview]:
        """The chunks that lie one behind the other in `stored`. What this thread got before is gone."""

    def index_bytes(self, count: int) -> int:
        """Size of the index of so many chunks."""

    def to_index(self, placed: bytes, facts: bytes) -> bytes:
        """Of records as PLACED, back to back. `facts`: what the footer says besides."""

    def from_index(self, index: bytes, facts: bytes) -> bytes:
        """Its records, back to back."""


class Cipher(Protocol):
    """Of one store. Thread-safe."""

    mark: bytes

    def name_of(self, data: bytes | bytearray | memoryview) -> bytes:
        """Of a chunk. The interpreter is not held meanwhile."""

    def name_of_zeros(self, size: int) -> bytes: ...

    def encrypt(self, file: str, data: bytes) -> bytes:
        """A small file, whole. `file`: its path in the store, the only one where it can be read from."""

    def decrypt(self, file: str, data: bytes, address: object) -> bytes:
        """`address`: what to call it. Raises Damaged, WrongImage."""

    def pack(self, pack_id: str) -> PackCipher: ...

    def check_mark(self, found: bytes, store: object) -> None:
        """Raises WrongKey where a store with this mark is not one of ours, Damaged, WrongImage."""


class PlainPack:
    version = 1
    record = PLACED

    def to_disk(self, entries: Sequence[Entry], data: Sequence[memoryview], stored: memoryview) -> None:
        pieces = as_stored(entries, stored)
        move_each([blocks[: entry.size] for entry, blocks in zip(entries, pieces, strict=True)], data)
        for entry, blocks in zip(entries, pieces, strict=True):
            blocks[entry.size :] = bytes(len(blocks) - entry.size)

    def from_disk(self, entries: Sequence[Entry], stored: memoryview) -> Sequence[memoryview]:
        return [blocks[: entry.size] for entry, blocks in zip(entries, as_stored(entries, stored), strict=True)]

    def index_bytes(self, count: int) -> int:
        return count * self.record.size

    def to_index(self, placed: bytes, facts: bytes) -> bytes:
        return placed

    def from_index(self, index: bytes, facts: bytes) -> bytes:
        return index


class Plain:
    """Everything is stored as it is."""

    mark = b""

    def name_of(self, data: bytes | bytearray | memoryview) -> bytes:
        return name_of(data)

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
    """Of an encrypted store."""
    facts = _MARK.pack(_MARK_MAGIC, _MARK_VERSION, check)
    return facts + name_of(facts)


def check_of(mark: bytes, store: object) -> bytes:
    """What the mark of an encrypted store has. Raises Damaged, WrongImage."""
    facts, digest = mark[: _MARK.size], mark[_MARK.size :]
    if name_of(facts) != digest:
        raise Damaged.of(store, "its mark is not what was written", hint="any store of the same key has the same mark")
    magic, version, check = _MARK.unpack(facts)
    if magic != _MARK_MAGIC or version != _MARK_VERSION:
        raise WrongImage(f"{store}: a store of version {version}; this gcr reads {_MARK_VERSION}")
    return bytes(check)
