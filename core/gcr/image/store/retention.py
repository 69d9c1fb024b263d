"""Chooses the images that `gcr prune` removes: all but the newest few, and the newest of each of the last days.

Days are those of the local clock. The parent of an image may go: the image has all of its own bytes. A clock may have
been set back: so an image counts as newer than its parent, even if its time is earlier.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from gcr.image.disk.durable import size_of
from gcr.image.files.manifest import Manifest
from gcr.image.store.leftovers import unneeded
from gcr.imageerrors import Damaged, WrongImage

if TYPE_CHECKING:
    from gcr.image.store.store import Store

Age = tuple[float, int]  # the latest time of an image and its ancestors, and how many they are


def doomed(manifests: Iterable[Manifest], keep_last: int, keep_daily: int) -> Sequence[Manifest]:
    """Returns the images to remove, oldest first.

    keep_last: so many of each job stay; keep_daily: so do the newest of so many days that have images
    """
    newest = newest_first(manifests)
    kept: set[str] = set()
    for job in {each.source.job for each in newest}:
        mine = [each for each in newest if each.source.job == job]
        kept |= {each.name for each in mine[:keep_last]}
        kept |= set(list(_newest_by_day(mine).values())[:keep_daily])
    return [each for each in reversed(newest) if each.name not in kept]


def would_free(store: "Store", going: Iterable[str]) -> int:
    """Returns how many bytes go if these images are removed while no other process uses the store. Raises OSError."""
    left = {*store.images.names()}.difference(going)
    try:
        needed = store.images.pack_ids(left)
    except (Damaged, WrongImage):  # a chunk that such an image may need stays
        return 0
    return sum(map(size_of, unneeded(store.packs.folder, store.images.folder, left, needed)))


def newest_first(manifests: Iterable[Manifest]) -> Sequence[Manifest]:
    found = {each.name: each for each in manifests}
    ages = _ages(found)
    return sorted(found.values(), key=lambda each: (ages[each.name], each.created, each.name), reverse=True)


def _ages(images: Mapping[str, Manifest]) -> Mapping[str, Age]:
    """Returns the age of each image. Names may have been used again, so a line of parents may run in a circle."""
    found: dict[str, Age] = {}
    for each in images.values():
        line: list[Manifest] = []
        names: set[str] = set()
        at: Manifest | None = each
        while at and at.name not in found and at.name not in names:
            line.append(at)
            names.add(at.name)
            at = _parent(at, images)
        latest, count = found.get(at.name, (0.0, 0)) if at else (0.0, 0)
        for image in reversed(line):
            latest, count = max(latest, image.created), count + 1
            found[image.name] = latest, count
    return found


def _parent(image: Manifest, images: Mapping[str, Manifest]) -> Manifest | None:
    """Returns the parent, or None if an image of other processes has its name by now."""
    found = images.get(image.costs.parent or "")
    who = {(each.table.pid, each.table.start_time) for each in image.processes}
    theirs = {(each.table.pid, each.table.start_time) for each in found.processes} if found else set()
    return found if who & theirs else None


def _newest_by_day(newest_first: Sequence[Manifest]) -> dict[str, str]:
    """Returns names by day, the last day first."""
    found: dict[str, str] = {}
    for each in newest_first:
        found.setdefault(datetime.fromtimestamp(each.created).strftime("%Y-%m-%d"), each.name)
    return found
