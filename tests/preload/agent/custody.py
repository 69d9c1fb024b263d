"""Handles that an agent exported, as the daemon holds them: a descriptor each."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packets import handles_in


@dataclass
class Custody:
    """Handles that the agent exported and the daemon holds. `kept`: those that the agent has back as well."""

    held: dict[int, int] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)

    def hold(self, payload: bytes, fds: Sequence[int]) -> None:
        """Takes the descriptors of an export. A handle that is kept has none: the daemon holds it still."""
        left = iter(fds)
        for handle in handles_in(payload):
            if handle.kept:
                assert handle.id in self.held
                continue
            if handle.unexportable:
                continue
            if handle.id in self.held:
                os.close(self.held[handle.id])
            self.held[handle.id] = next(left)
        assert next(left, None) is None

    def release(self, ids: Iterable[int]) -> None:
        for gone in ids:
            fd = self.held.pop(gone, -1)  # a late free may have taken it meanwhile
            if fd >= 0:
                os.close(fd)

    def keep_all(self) -> None:
        """Keeps what came back: the driver does not export it a second time."""
        self.kept |= set(self.held)

    def release_new(self) -> None:
        """Releases what the agent has not had back."""
        self.release(set(self.held) - self.kept)

    def drop(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()
