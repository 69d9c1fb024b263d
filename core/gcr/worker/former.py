"""The copy of a process that stays in the arena when the process comes back: its next copy reads only what changed.

The segments of the copy are free, so a job that needs the room gets it, and the copy is lost then. The hashes are of
the bytes that the device had when it was copied, while the program stood still. At the next cut the device hashes its
bytes with the same key, and a chunk is read where the hashes differ, as after a live copy (live.py).

A program that changes almost everything in between gains nothing, and stands still for the hash (12 ms for 32 GiB on an
H200). So after a copy that was of no use the next one is not compared, after two in a row the next three, and so on.
"""

from collections.abc import Mapping
from threading import Lock

from msgspec import Struct, field

from gcr.memory.arena import Arena, Segments
from gcr.worker.attachment import Attachment
from gcr.worker.live import LiveCopy

OF_NO_USE = 0.9  # of all bytes: a copy that had to read so many
LONGEST_REST = 15  # copies
MOST_WASTE = 1.25  # room of the copy, with places of memory that was freed since, for each byte that it is to hold


class Left(Struct, frozen=True):
    """A whole copy: the segments that it is in, and its books."""

    segments: Segments
    books: LiveCopy


class Former(Struct):
    """The last whole copy of a process, if its arena has it still. Thread-safe."""

    arena: Arena
    attachment: Attachment
    _left: Left | None = None
    _taken: bool = False  # by the copy that is being made
    _useless: int = 0  # copies in a row that were of no use
    _rest: int = 0  # copies that are not to be compared
    _lock: Lock = field(default_factory=Lock)

    def leave(self, left: Left) -> None:
        """Gives the segments of a copy back to the arena, and remembers what is in them."""
        self.arena.give_back(left.segments, leave=True)
        with self._lock:
            self._left = left

    def take(self, sizes: Mapping[int, int]) -> Left | None:
        """Takes the segments of the copy again, and forgets it. `sizes`: bytes by id, of the memory to be copied.

        Returns None where there is none, or too little of it is of use, or those before were of none. Raises NoRoom
        where it cannot be pinned.
        """
        with self._lock:
            left, self._left, self._taken = self._left, None, False
            if left and self._rest:
                self._rest -= 1
                return None
        if left is None or not self.attachment.hashes_itself():
            return None
        if left.books.laid_out_for(sizes).size > MOST_WASTE * sum(sizes.values()):
            return None
        if not self.arena.take_again(left.segments):
            return None
        try:
            self.arena.keep(left.segments)
        except BaseException:
            self.arena.give_back(left.segments)
            raise
        self._taken = True
        return left

    def judge(self, copied: int, total: int) -> None:
        """Notes how many of all bytes a copy had to read. Learns nothing from a copy that had no former one."""
        with self._lock:
            if not self._taken:
                return
            self._taken = False
            self._useless = self._useless + 1 if copied > OF_NO_USE * total else 0
            self._rest = min(2**self._useless - 1, LONGEST_REST)

    def forget(self) -> None:
        with self._lock:
            self._left = None
