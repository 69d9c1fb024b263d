"""The command that moves a job, as a record names it: another process of its machine can tell whether it is gone."""

import os
from enum import StrEnum
from typing import Self

from msgspec import Struct

from gcr.processes import ProcessIdentity, alive, boot_id, identify, pid_space


class Fate(StrEnum):
    """Says whether a command that moves a job lives, as far as this process can tell."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # it runs, or ran, where its pid says nothing here


class Mover(Struct, frozen=True):
    """A process. `boot`: the kernel's start · `space`: the space of its pid · `start`: clock ticks after boot"""

    boot: str
    space: str
    pid: int
    start: int

    @classmethod
    def ourselves(cls) -> Self:
        found = identify(os.getpid())
        return cls(boot_id(), pid_space(), os.getpid(), found.start_time if found else 0)

    @property
    def fate(self) -> Fate:
        """Returns GONE only where the process was one of this machine and space of pids, and has ended."""
        if not (self.boot and self.space and self.start) or (self.boot, self.space) != (boot_id(), pid_space()):
            return Fate.UNKNOWN
        if alive(ProcessIdentity(self.pid, self.start)):
            return Fate.ALIVE
        return Fate.UNKNOWN if identify(self.pid) is None and _is_there(self.pid) else Fate.GONE


def _is_there(pid: int) -> bool:
    """Returns whether some process has this pid, also one that /proc hides from us."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
