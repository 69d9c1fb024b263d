"""The log of a detached job, kept within bounds by its supervisor, or by the daemon once that has died."""

import os
import shutil
from pathlib import Path


def turn(path: Path, most: int) -> None:
    """Moves the content of a log of more than `most` bytes to `.1`; the program goes on at the beginning.

    What the program prints between the copy and the cut, some microseconds, is lost. Raises OSError.
    """
    with path.open("rb") as full:
        if os.fstat(full.fileno()).st_size <= most:
            return
        fd = os.open(f"{path}.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as before:
            shutil.copyfileobj(full, before)
            before.flush()
            while piece := full.read():  # printed meanwhile
                before.write(piece)
                before.flush()
            os.truncate(path, 0)
