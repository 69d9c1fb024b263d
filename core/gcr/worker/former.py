"""The copy of a process that stays in the arena when the process comes back: its next copy reads only what changed.

The segments of the copy are free, so a job that needs the room gets it, and the copy is lost then. The hashes are of
the bytes that the device had when it was copied, while the program stood still. At the next cut the device hashes its
bytes with the same key, and a chunk is read where the hashes differ, as after a live copy (live.py).
"""

from collections.abc import Mapping
from threading import Lock

from msgspec import Struct, field

from gcr.memory.arena import Arena, Segments
from gcr.worker.attachment import Attachment
from gcr.worker.live import LiveCopy

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
    _lock: Lock = field(default_factory=Lock)

    def leave(self, left: Left) -> None:
        """Gives the segments of a copy back to the arena, and remembers what is in them."""
        self.arena.give_back(left.segments, leave=True)
        with self._lock:
            self._left = left

    def take(self, sizes: Mapping[int, int]) -> Left | None:
        """Takes the segments of the copy again, and forgets it. `sizes`: bytes by id, of the memory to be copied.

        Returns None where there is none, or too little of it is of use. Raises NoRoom where it cannot be pinned.
        """
        with self._lock:
            left, self._left = self._left, None
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
        return left

    def forget(self) -> None:
        with self._lock:
            self._left = None
