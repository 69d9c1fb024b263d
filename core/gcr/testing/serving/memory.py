"""Device memory: handles and ranges, ballast, pins."""

import os
from collections.abc import Sequence

from msgspec import Struct

from gcr.drain import Ballast, DataDrain, DeviceMemory, DeviceRange, Handed, HandleSpec
from gcr.testing.serving.opened import Opened


class Passed(Struct):
    """Descriptors that came with a request, and those that go with its reply."""

    received: list[int]
    sending: list[int]


class Memory:
    def __init__(self, opened: Opened, passed: Passed) -> None:
        self._opened = opened
        self._passed = passed
        self._ballasts: dict[int, Ballast] = {}

    @property
    def _drain(self) -> DataDrain:
        return self._opened.drain

    def open(self, device: str) -> None:
        self._opened.open(device)

    def close(self) -> None:
        self._drain.close()

    def create(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        return self._drain.create(specs)

    def adopt(self, specs: Sequence[HandleSpec]) -> DeviceRange:
        """Takes the descriptors that came with this request, in the order of `specs`."""
        taken, self._passed.received = self._passed.received, []
        return self._drain.adopt([Handed(spec, fd) for spec, fd in zip(specs, taken, strict=True)])

    def export(self, where: DeviceRange, ids: Sequence[int]) -> list[HandleSpec]:
        handed = self._drain.export(where, ids)
        sending = self._passed.sending = [each.fd for each in handed]
        assert not any(os.get_inheritable(fd) for fd in sending), "a child of this process would inherit them"
        return [each.spec for each in handed]

    def forget(self, where: DeviceRange, ids: Sequence[int]) -> None:
        self._drain.forget(where, ids)

    def release(self, where: DeviceRange) -> None:
        self._drain.release(where)

    def memory(self) -> DeviceMemory:
        return self._drain.memory()

    def unpin(self, address: int) -> None:
        self._drain.unpin(address)

    def ballast(self, size: int) -> int:
        ballast = self._drain.ballast(size)
        self._ballasts[id(ballast)] = ballast
        return id(ballast)

    def drop(self, ballast: int) -> None:
        self._ballasts[ballast].release()
