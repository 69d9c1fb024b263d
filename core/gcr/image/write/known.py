"""The chunks that a store has: the indexes of its packs, as they are on disk, and a hash table over them.

A chunk takes its record of 40 or 56 bytes, and 8 to 16 in the table. Python objects would take ten times that, too much
before each image in a store of many TiB. Names are hashes, so their first bytes are the table's key.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from struct import Struct
from sys import byteorder

from gcr.image.chunks.entry import padded
from gcr.image.pack.reader import PackReader

_WORD = 8  # bytes; a record has whole words, and begins with its name


class Known:
    """The chunks of a store's packs, by name. Not thread-safe."""

    def __init__(self) -> None:
        self._record = Struct("")  # the same in every pack of a store
        self._packs: list[str] = []
        self._begins: list[int] = []  # the number of each pack's first chunk
        self._entries = bytearray()
        self._slots = array("I")  # a chunk's number plus 1; a search ends at the first 0

    def add(self, pack: PackReader) -> None:
        """Adds the chunks of a pack, before the first `places`."""
        self._record = pack.record
        self._packs.append(pack.pack.id)
        self._begins.append(len(self._entries) // self._record.size)
        self._entries += pack.index

    def prepare(self) -> None:
        """Makes the table, once. It takes a quarter of a second a million chunks."""
        if not self._slots:
            self._fill()

    def places(self, name: bytes) -> Iterator[tuple[str, int]]:
        """Yields pack and block wherever the chunk is."""
        self.prepare()
        mask = len(self._slots) - 1
        slot = int.from_bytes(name[:8], byteorder) & mask
        while number := self._slots[slot]:
            found, block, *_ = self._record.unpack_from(self._entries, (number - 1) * self._record.size)
            if found == name:
                yield self._packs[bisect_right(self._begins, number - 1) - 1], block
            slot = slot + 1 & mask

    def sizes(self, pack: str) -> Mapping[int, int]:
        """Returns the bytes of the disk that each chunk of a pack takes, by its block."""
        number = self._packs.index(pack)
        begin, end = [*self._begins, len(self._entries) // self._record.size][number : number + 2]
        records = memoryview(self._entries)[begin * self._record.size : end * self._record.size]
        return {block: padded(size) for _, block, size, *_ in self._record.iter_unpack(records)}

    def _fill(self) -> None:
        if not self._packs:
            self._slots = array("I", [0])
            return
        chunks = len(self._entries) // self._record.size
        slots = array("I", bytes(4 << (2 * chunks).bit_length()))  # less than half of it full
        mask = len(slots) - 1
        with memoryview(self._entries) as entries, entries.cast("Q") as words:
            for number, beginning in enumerate(words[:: self._record.size // _WORD], 1):
                slot = beginning & mask
                while slots[slot]:
                    slot = slot + 1 & mask
                slots[slot] = number
        self._slots = slots
