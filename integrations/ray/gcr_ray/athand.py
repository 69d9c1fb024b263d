"""The Ray clusters that this machine is part of, by the raylets that run here, without Ray.

Ray itself takes the one that was started last, or any. gcr would then suspend jobs of a cluster that was not meant.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_RAYLET = "raylet"
_ADDRESS = "--gcs-address="


def addresses(proc: Path = Path("/proc")) -> list[str]:
    """Returns the addresses of the clusters of this user's raylets; where it has none, of all raylets."""
    found = [*_raylets(proc)]
    ours = {address for user, address in found if user == os.getuid()}
    return sorted(ours or {address for _, address in found})


def _raylets(proc: Path) -> Iterator[tuple[int, str]]:
    """Yields the user of each raylet, and the address of its cluster."""
    for process in proc.iterdir():
        with suppress(OSError):  # it has ended
            if process.name.isdigit():
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if Path(words[0]).name == _RAYLET:
                    user = process.stat().st_uid
                    yield from ((user, word.removeprefix(_ADDRESS)) for word in words if word.startswith(_ADDRESS))
