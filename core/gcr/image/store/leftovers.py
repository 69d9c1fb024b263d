"""What is in a store and belongs to no image: who wrote it has died, or is still at work."""

import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from gcr.image.files.names import NEW, PROBE
from gcr.image.pack.format import ARRIVING, FILE, UNFINISHED
from gcr.listing import listed

OURS = re.compile(r"([a-z][a-z0-9._-]{0,62})\.(?:json\.new|json\.link|chunks|hashes|pulled)\Z")  # beside its manifest
RESUMABLE_S = 86400.0  # for so long what a pull has left is not taken away to make room for nobody


def unfinished(packs: Path, images: Path, names: Collection[str]) -> Iterator[Path]:
    """In these folders, where there are images of these names. Raises OSError."""
    yield from listed(packs, UNFINISHED)
    yield from listed(packs, ARRIVING)
    for path in listed(images):
        ours = OURS.match(path.name)
        if ours and (ours[1] not in names or path.name.endswith((NEW, PROBE))):
            yield path


def unneeded(packs: Path, images: Path, names: Collection[str], needed: Collection[str]) -> Collection[Path]:
    """All that is unfinished, and the packs that are not `needed`, by id. Raises OSError."""
    found = ((FILE.match(path.name), path) for path in listed(packs))
    idle = {path for ours, path in found if ours and ours[1] not in needed}
    return idle.union(unfinished(packs, images, names))


def is_resumable(path: Path) -> bool:
    """The next pull takes it up.

    A time to come is that of another clock, which is a little ahead; one far ahead would keep it for ever.
    """
    if path.name.endswith(ARRIVING):
        with suppress(FileNotFoundError):
            return abs(time.time() - path.lstat().st_mtime) < RESUMABLE_S
    return False
