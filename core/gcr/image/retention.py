"""Which images `gcr prune` takes away: all but the newest few, and the newest of each of the last days.

Days are those of the local clock. An image that another one names as its parent may go: the other one has all of its
own bytes.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from gcr.image.manifest import Manifest


def doomed(manifests: Iterable[Manifest], keep_last: int, keep_daily: int) -> Sequence[Manifest]:
    """Oldest first. keep_last: so many of each job; keep_daily: the newest of so many days on which there is one."""
    newest = sorted(manifests, key=lambda each: (each.created, each.name), reverse=True)
    kept: set[str] = set()
    for job in {each.job for each in newest}:
        mine = [each for each in newest if each.job == job]
        kept |= {each.name for each in mine[:keep_last]}
        kept |= set(list(_newest_by_day(mine).values())[:keep_daily])
    return [each for each in reversed(newest) if each.name not in kept]


def _newest_by_day(newest_first: Sequence[Manifest]) -> dict[str, str]:
    """Names by day, the last day first."""
    found: dict[str, str] = {}
    for each in newest_first:
        found.setdefault(datetime.fromtimestamp(each.created).strftime("%Y-%m-%d"), each.name)
    return found
