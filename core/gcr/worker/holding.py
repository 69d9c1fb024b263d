"""A worker's share of one process: its handed-over memory, and its copies in the arena."""

from collections.abc import Callable, Sequence
from threading import Lock

from gcr.errors import WrongState
from gcr.memory.arena import Arena
from gcr.worker.attachment import Attachment
from gcr.worker.former import Former
from gcr.worker.held import HeldMemory
from gcr.worker.hostcopy import HostCopy


class Holding:
    """The memory of a process, and its copies by the transactions that made them. Thread-safe.

    A copy has a lock of its own: the use or the end of one copy neither holds up nor touches another.
    """

    def __init__(
        self,
        attachment: Attachment,
        arena: Arena,
        device: str,
        owner: str = "",
        name: str = "",
        leaves_copies: bool = False,
    ) -> None:
        self.memory = HeldMemory(attachment, owner, name)
        self._arena, self._device = arena, device
        self._former = Former(arena, attachment) if leaves_copies else None
        self._copies: dict[int, HostCopy] = {}
        self._lock = Lock()

    def copy(self, number: int) -> HostCopy:
        """Returns the copy of a transaction, which is made where there is none."""
        with self._lock:
            if number not in self._copies:
                self._copies[number] = HostCopy(self.memory, self._arena, self._device, former=self._former)
            return self._copies[number]

    def known_copy(self, number: int) -> HostCopy | None:
        with self._lock:
            return self._copies.get(number)

    @property
    def copies(self) -> list[HostCopy]:
        with self._lock:
            return [*self._copies.values()]

    @property
    def uses_the_device(self) -> bool:
        with self.memory.lock:
            return bool(self.memory.ranges or self.memory.ballast or any(copy.room_bytes for copy in self.copies))

    @property
    def device_bytes(self) -> int:
        """All device memory held here, in bytes. Takes no lock of the memory: a look does not wait for a copy."""
        return self.memory.bytes + sum(copy.room_bytes for copy in self.copies)

    def forget(self, ids: Sequence[int]) -> None:
        """Releases handles. A live copy loses them; a copy that was sealed keeps its bytes of them."""
        with self.memory.lock:
            self.memory.forget(ids)
            for copy in self.copies:
                copy.forget(ids)

    def create(self, number: int, ballast: int) -> int:
        """Makes physical memory for all handles of a copy, in arena order, and ballast. Raises as HeldMemory.create.

        Takes what is resident beside this copy, and makes the rest. Returns the bytes that need no refill.
        """
        copy = self.copy(number)
        handles = copy.handles()
        there = self.memory.claim(number, handles, ballast)
        if there is None:
            self.memory.create(handles, ballast)
        return there or 0

    def stay(self, number: int) -> int:
        """Makes the memory resident beside a whole copy. Returns its bytes. Raises WrongState without such a copy."""
        copy = self.known_copy(number)
        if copy is None:
            raise WrongState("no copy has what is held: the memory cannot stay")
        with copy.lock:
            _refuse_unless_whole(copy)
            return self.memory.stay(number, copy.specs)

    def release(self) -> None:
        """Releases the device memory of the process; its copies stay. Waits for transfers in flight."""
        self.memory.release()

    def forget_copy(self, number: int) -> None:
        """Gives up a copy, if there is one: the process or an image has its bytes, or they are not needed."""
        if copy := self.known_copy(number):
            self.memory.copy_ended(number)
            copy.give_up()
            self._remove(number)

    def surrender(self) -> None:
        """Gives all copies to another worker: this one never writes to the same host memory again."""
        self.release()
        self._end_copies(HostCopy.surrender)
        if self._former:
            self._former.forget()

    def forfeit(self) -> None:
        """Releases all memory of the process, and gives up its copies."""
        self.release()
        self._end_copies(HostCopy.give_up)

    def _end_copies(self, end: Callable[[HostCopy], None]) -> None:
        with self._lock:
            ending = [*self._copies.items()]
        for number, copy in ending:
            end(copy)
            self._remove(number)

    def _remove(self, number: int) -> None:
        with self._lock:
            self._copies.pop(number, None)


def _refuse_unless_whole(copy: HostCopy) -> None:
    """Raises WrongState where the arena has not every byte: a snapshot, a ring or the parent image has some.

    The copy's lock is held.
    """
    elsewhere = copy.ring or (copy.parent and copy.parent.allocations) or (copy.snapshot and copy.snapshot.later)
    if copy.use.given_up or copy.layout is None or copy.segments is None or elsewhere:
        raise WrongState("the host has no whole copy: the memory cannot stay")
