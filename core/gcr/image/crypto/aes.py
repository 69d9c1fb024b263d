"""AES-256-GCM of pyca/cryptography: the cipher of encrypted stores.

    the user's key (32 bytes)
      ├─ "gcr 1 check"            in the mark of the store
      ├─ "gcr 1 names"            key of BLAKE3 for the names of chunks
      ├─ "gcr 1 pack" · its id    of one pack
      └─ "gcr 1 file" · its salt  of one small file

HKDF-SHA256 derives each key, with this text as its `info`. Ids and salts are random, so no key is used for two packs
or two files. Within a pack the nonce is the block at which a chunk begins, 0 for the index, so no nonce is used twice.
A tag also authenticates the purpose: that of a chunk its name, of an index the facts of the footer, of a file its path.

GCM keeps lengths. So a chunk lies in its pack where it would lie without encryption; its tag is in the index.
"""

import os
from collections.abc import Sequence
from struct import Struct

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gcr.image.chunks.chunk import names_of
from gcr.image.chunks.entry import PLACED, Entry, padded
from gcr.image.crypto.cipher import FILE_MAGIC, Forged, Lying, PackCipher, check_of, mark_of
from gcr.image.disk.bounce import Bounce, move_each
from gcr.imageerrors import Damaged, WrongImage, WrongKey

KEY_BYTES = 32
TAG_BYTES = 16
_FILE = Struct("<8sI4x32s")  # magic, version, salt
_FILE_VERSION = 1
_FILE_NONCE = bytes(12)  # each file has a key of its own, and is its only message
_NONCE = Struct("<QI")


class Aes:
    """The cipher of stores with this key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes")
        self._key = key
        self._names = self._derived(b"gcr 1 names")
        self._check = self._derived(b"gcr 1 check")
        self._zeros: dict[int, bytes] = {}
        self._memories = Bounce(), Bounce()
        self.mark = mark_of(self._check)

    def name_of(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(blake3(data, key=self._names).digest())

    def names_of(self, memory: memoryview, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
        return names_of(memory, starts, sizes, self.name_of, self.name_of_zeros)

    def name_of_zeros(self, size: int) -> bytes:
        if size not in self._zeros:
            self._zeros[size] = self.name_of(bytes(size))
        return self._zeros[size]

    def encrypt(self, file: str, data: bytes) -> bytes:
        head = _FILE.pack(FILE_MAGIC, _FILE_VERSION, os.urandom(32))
        return head + self._file(head).encrypt(_FILE_NONCE, data, head + file.encode())

    def decrypt(self, file: str, data: bytes, address: object) -> bytes:
        head = data[: _FILE.size]
        if len(head) < _FILE.size or not head.startswith(FILE_MAGIC):
            raise Damaged.of(address, "it is not what was written: it is not encrypted")
        if (version := _FILE.unpack(head)[1]) != _FILE_VERSION:
            raise WrongImage(f"{address}: encrypted in version {version}; this gcr reads {_FILE_VERSION}")
        try:
            return self._file(head).decrypt(_FILE_NONCE, data[_FILE.size :], head + file.encode())
        except InvalidTag:
            raise Damaged.of(address, "it is not what was written under this name") from None

    def pack(self, pack_id: str) -> PackCipher:
        return AesPack(self._derived(b"gcr 1 pack" + bytes.fromhex(pack_id)), *self._memories)

    def check_mark(self, found: bytes, store: object) -> None:
        if not found:
            raise WrongKey(f"{store} is not encrypted, and a key was given", hint="another --store, or no key")
        if check_of(found, store) != self._check:
            raise WrongKey(f"{store} is encrypted with another key")

    def _file(self, head: bytes) -> AESGCM:
        return AESGCM(self._derived(b"gcr 1 file" + _FILE.unpack(head)[2]))

    def _derived(self, info: bytes) -> bytes:
        return HKDF(SHA256(), KEY_BYTES, None, info).derive(self._key)


class AesPack:
    """The cipher of one pack. Its index has each chunk's tag besides, and ends with a tag of its own."""

    version = 2
    is_plain = False
    record = Struct("<32sII16s")

    def __init__(self, key: bytes, memory: Bounce, tagged: Bounce) -> None:
        """`memory`: for decrypted chunks · `tagged`: for an encrypted chunk and its tag."""
        self._aes = AESGCM(key)
        self._memory, self._tagged = memory, tagged
        self._tags: dict[int, bytes] = {}  # by block, of the chunks that this object has written

    def to_disk(self, entries: Sequence[Entry], data: Sequence[memoryview], stored: memoryview) -> None:
        at = 0
        for entry, plain in zip(entries, data, strict=True):
            tag, end = at + entry.size, at + padded(entry.size)
            self._aes.encrypt_into(_nonce(entry.block), plain, entry.name, stored[at : tag + TAG_BYTES])
            self._tags[entry.block] = bytes(stored[tag : tag + TAG_BYTES])  # the next chunk, or zeros, overwrite it
            stored[tag:end] = bytes(end - tag)
            at = end

    def from_disk(self, run: Lying, stored: memoryview) -> memoryview:
        memory = self._memory.buffer(len(stored))
        for entry, chunk, target in zip(run.entries, run.chunks(stored), run.chunks(memory), strict=True):
            self._decrypt(entry, chunk, target)
        return memory

    def index_bytes(self, count: int) -> int:
        return count * self.record.size + TAG_BYTES

    def to_index(self, placed: bytes, facts: bytes, beside: bytes = b"") -> bytes:
        fields = ((name, block, size, self._tags[block]) for name, block, size in PLACED.iter_unpack(placed))
        return self._aes.encrypt(_nonce(0), b"".join(self.record.pack(*each) for each in fields) + beside, facts)

    def from_index(self, index: bytes, facts: bytes) -> bytes:
        try:
            return self._aes.decrypt(_nonce(0), index, facts)
        except InvalidTag:
            raise Forged("its index is not what was written") from None

    def _decrypt(self, entry: Entry, chunk: memoryview, target: memoryview) -> None:
        tagged = self._tagged.buffer(entry.size + TAG_BYTES)
        move_each([tagged[: entry.size]], [chunk])
        tagged[entry.size :] = entry.tag
        try:
            self._aes.decrypt_into(_nonce(entry.block), tagged, entry.name, target)
        except InvalidTag:
            raise Forged(f"the chunk at block {entry.block} is not what was written") from None


def _nonce(block: int) -> bytes:
    return _NONCE.pack(block, 0)
