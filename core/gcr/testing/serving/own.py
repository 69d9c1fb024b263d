"""The peer's own process, and what its backend says."""

import mmap
import time
from collections.abc import Sequence
from pathlib import Path

from gcr.backend import Backend, Capability, Device

LOOKS, LOOK_SECONDS = 11, 0.006


class OwnProcess:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def descriptors(self) -> int:
        """Returns the number of open descriptors, the median of some looks: a driver's threads open files briefly."""
        return sorted(self._descriptors_now() for _ in range(LOOKS))[LOOKS // 2]

    @staticmethod
    def _descriptors_now() -> int:
        time.sleep(LOOK_SECONDS)
        return len(list(Path("/proc/self/fd").iterdir())) - 1  # less the one that lists

    def mapped(self, fragments: Sequence[str]) -> list[str]:
        """Returns the file names among these that this process maps."""
        maps = Path("/proc/self/maps").read_text()
        return [fragment for fragment in fragments if fragment in maps]

    def mapped_bytes(self) -> int:
        """Returns the address space that this process has reserved, in bytes."""
        status = Path("/proc/self/statm").read_text()
        return int(status.split()[0]) * mmap.PAGESIZE

    def name(self) -> str:
        return self._backend.name

    def probe(self) -> Sequence[Capability]:
        return list(self._backend.probe())

    def devices(self) -> Sequence[Device]:
        return list(self._backend.devices())
