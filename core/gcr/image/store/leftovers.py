"""Files of a store that belong to no image: their writer has died, or is still at work."""

import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from gcr.image.files.names import NEW, NEW_AHEAD, NEW_ROOT, PROBE
from gcr.image.pack.format import ARRIVING, FILE, NOTES, UNFINISHED
from gcr.listing import listed

_BESIDE = r"json\.new|json\.link|chunks|hashes|pulled|cut|cut\.new|ahead[0-9]{1,3}|ahead\.new"  # a manifest
OURS = re.compile(rf"([a-z][a-z0-9._-]{{0,62}})\.(?:{_BESIDE})\Z")
RESUMABLE_S = 86400.0  # the next pull may take up what one has left for so long


def unfinished(packs: Path, images: Path, names: Collection[str]) -> Iterator[Path]:
    """Yields the unfinished files in these folders. `names`: the images that exist. Raises OSError."""
    yield from listed(packs, UNFINISHED)
    yield from listed(packs, ARRIVING)
    yield from listed(packs, NOTES)
    for path in listed(images):
        ours = OURS.match(path.name)
        if ours and (ours[1] not in names or path.name.endswith((NEW, PROBE, NEW_ROOT, NEW_AHEAD))):
            yield path


def unneeded(packs: Path, images: Path, names: Collection[str], needed: Collection[str]) -> Collection[Path]:
    """Returns the unfinished files, and the packs with ids that are not `needed`. Raises OSError."""
    found = ((FILE.match(path.name), path) for path in listed(packs))
    idle = {path for ours, path in found if ours and ours[1] not in needed}
    return idle.union(unfinished(packs, images, names))


def is_resumable(path: Path) -> bool:
    """Returns whether the next pull takes this file up.

    A file may be a little younger than now, by another machine's clock; one from far ahead would stay for ever.
    """
    if path.name.endswith(ARRIVING):
        with suppress(FileNotFoundError):
            return abs(time.time() - path.lstat().st_mtime) < RESUMABLE_S
    return False
