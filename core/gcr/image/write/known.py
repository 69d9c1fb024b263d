"""The chunks that a store has: the indexes of its packs, as they are on disk, and a hash table over them.

A chunk takes its record of 40 or 56 bytes, and 8 to 16 in the table. Python objects would take ten times that, too much
before each image in a store of many TiB. Names are hashes, so their first bytes are the table's key.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from sys import byteorder

from gcr.image.chunks.chunk import NAME_BYTES
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
        return ((self._packs[self._pack_of(number)], block) for number, block in self._numbers(name))

    def run(self, names: bytes, at: int, may_be: Callable[[str], bool]) -> tuple[str, list[int]] | None:
        """Returns where chunks are that lie in a pack one behind the other: the pack, and the block of each.

        names: of chunks, one behind the other; the run begins with the one `at`, and ends before a chunk that does not
        follow · may_be: tells whether a place in a pack is good. None: the first chunk is in no such pack
        """
        for number, _ in self._numbers(names[at * NAME_BYTES : (at + 1) * NAME_BYTES]):
            pack = self._pack_of(number)
            if may_be(self._packs[pack]):
                return self._packs[pack], self._following(pack, number, names, at)
        return None

    def _following(self, pack: int, number: int, names: bytes, at: int) -> list[int]:
        """Returns the blocks of the records of a pack, from `number` on, that have the names from `at` on."""
        until = min(self._end_of(pack), number + len(names) // NAME_BYTES - at)
        records = memoryview(self._entries)[number * self._record.size : until * self._record.size]
        blocks = list[int]()
        for begin, (name, block, *_) in zip(
            range(at * NAME_BYTES, len(names), NAME_BYTES), self._record.iter_unpack(records), strict=False
        ):
            if name != names[begin : begin + NAME_BYTES]:
                break
            blocks.append(block)
        return blocks

    def _numbers(self, name: bytes) -> Iterator[tuple[int, int]]:
        """Yields the number and the block of each record that has this name."""
        self.prepare()
        mask = len(self._slots) - 1
        slot = int.from_bytes(name[:8], byteorder) & mask
        while number := self._slots[slot]:
            found, block, *_ = self._record.unpack_from(self._entries, (number - 1) * self._record.size)
            if found == name:
                yield number - 1, block
            slot = slot + 1 & mask

    def _pack_of(self, number: int) -> int:
        return bisect_right(self._begins, number) - 1

    def _end_of(self, pack: int) -> int:
        """Returns the number behind the last record of a pack."""
        return [*self._begins[pack + 1 : pack + 2], len(self._entries) // self._record.size][0]

    def sizes(self, pack: str) -> Mapping[int, int]:
        """Returns the bytes of the disk that each chunk of a pack takes, by its block."""
        number = self._packs.index(pack)
        begin, end = self._begins[number], self._end_of(number)
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
