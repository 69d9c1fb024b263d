"""Network namespaces of a process tree."""

import os
from collections.abc import Collection
from pathlib import Path

from gcr.criu.preflight.facts import Opened


def namespaces(held: Collection[Opened]) -> Collection[int]:
    """Returns one process of each network namespace of these sockets' owners, and of this process's.

    A socket that the caller passed on is of the caller's.
    """
    found: dict[int, int] = {}
    for pid in (os.getpid(), *sorted({file.pid for file in held})):
        try:
            found.setdefault(Path(f"/proc/{pid}/ns/net").stat().st_ino, pid)
        except OSError:  # gone, or of another user: its descriptors were not read either
            continue
    return list(found.values()) if held else ()
