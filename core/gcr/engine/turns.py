"""Turns at the room of a device: drivers take room that was held for them, or gcr makes memory, never both at once.

A driver that finds too little room for a process never gives it back. gcr holds that room as ballast, and drops it
just before the driver takes it. Another transaction that made memory in between would take it.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Condition

from msgspec import Struct, field

from gcr.errors import DeadlinePassed

MAKING, TAKING = "making", "taking"


class Turns(Struct):
    """The uses of each device's room that are under way: of one kind at a time. Thread-safe.

    A block must not ask for another kind of use of the same device: it would wait for itself.
    """

    _under_way: dict[str, tuple[object, int]] = field(default_factory=dict)  # by device: the kind of use, and how many
    _changed: Condition = field(default_factory=Condition)

    @contextmanager
    def making(self, devices: Collection[str], limit: float) -> Iterator[None]:
        """Yields when no driver takes room there; the block makes memory, which is refused where there is no room.

        Raises DeadlinePassed after `limit` seconds.
        """
        with self._turn(MAKING, devices, limit):
            yield

    @contextmanager
    def taking(self, devices: Collection[str], limit: float) -> Iterator[None]:
        """Yields when nothing makes memory there; the block drops ballast, and has a driver take that room.

        Raises DeadlinePassed after `limit` seconds.
        """
        with self._turn(TAKING, devices, limit):
            yield

    @contextmanager
    def alone(self, devices: Collection[str], limit: float) -> Iterator[None]:
        """Yields when no other use is under way there. The block sees that there is room, and has a driver take it.

        Raises DeadlinePassed after `limit` seconds.
        """
        with self._turn(object(), devices, limit):
            yield

    @contextmanager
    def _turn(self, kind: object, devices: Collection[str], limit: float) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._free_for(kind, devices), limit):
                raise DeadlinePassed(f"other jobs still take or make room on the device after {limit:.1f} s")
            self._count(kind, devices, 1)
        try:
            yield
        finally:
            with self._changed:
                self._count(kind, devices, -1)
                self._changed.notify_all()

    def _free_for(self, kind: object, devices: Collection[str]) -> bool:
        return all(self._under_way[device][0] is kind for device in devices if device in self._under_way)

    def _count(self, kind: object, devices: Collection[str], more: int) -> None:
        for device in set(devices):
            count = self._under_way.pop(device, (kind, 0))[1] + more
            if count:
                self._under_way[device] = kind, count
