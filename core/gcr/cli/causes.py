"""Failed checks with a finding of their own, apart from those that only repeat an earlier finding.

Without a runtime every later check meets the same error, which says nothing about its own object.
"""

from collections.abc import Iterable

from gcr.backend import Capability
from gcr.facilities import FACILITIES


def causes(failed: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the checks that tell nothing new, each with the first check of that finding.

    failed: names and findings, in the order of the checks"""
    first: dict[str, str] = {}
    return {name: first[found] for name, found in failed if first.setdefault(found, name) != name}


def causes_among(answers: Iterable[Capability]) -> dict[str, str]:
    """The same of a probe's answers. A facility that rests on a check repeats `name: finding` of it."""
    failed = [each for each in answers if not each.ok]
    checks = [(each.name, each.evidence) for each in failed if each.name not in FACILITIES]
    waiting = causes(checks)
    repeated = {f"{name}: {found}": waiting.get(name, name) for name, found in checks}
    resting = {each.name: repeated[each.evidence] for each in failed if each.evidence in repeated}
    return {**waiting, **resting}
