"""Locks of models: one `gcr serve` has each. The kernel lets go of them when the process ends, however it ends."""

import fcntl
import os
from collections.abc import Iterable
from contextlib import ExitStack

from gcr.runtime import runtime_dir
from gcr.serveerrors import ModelTaken


def taken(models: Iterable[str]) -> ExitStack:
    """Returns the locks of all models; closing it gives them back. Raises ModelTaken, UnsafeRuntime."""
    with ExitStack() as locks:
        for name in models:
            fd = os.open(runtime_dir() / f"serve.{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            locks.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                text = f"another gcr serve, pid {holder or 'unknown'}, has the model {name}"
                raise ModelTaken(text, hint="end that one first, or leave the model to it") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return locks.pop_all()
