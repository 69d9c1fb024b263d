"""Descriptors of device memory: what one may be before a driver sees it."""

import os
import stat
from pathlib import Path

from gcr.errors import NotDeviceMemory


def is_file(fd: int) -> bool:
    """A simulated driver's descriptors are files."""
    return stat.S_ISREG(os.fstat(fd).st_mode)


def kind_of(fd: int) -> str:
    """Returns the name of the file in /proc: `/dmabuf:`, `/dev/nvidiactl`, `pipe:[4026]`."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def refuse_unless(genuine: bool, fd: int) -> None:
    """Raises NotDeviceMemory, saying what the descriptor is instead."""
    if not genuine:
        raise NotDeviceMemory(f"its descriptor is {kind_of(fd)}")


def unknown(told: str) -> NotDeviceMemory:
    """Returns the error for the results with which a driver refuses an import."""
    return NotDeviceMemory(f"the driver does not know its descriptor: {told}")


def closed_on_exec(fd: int) -> int:
    os.set_inheritable(fd, False)
    return fd
