"""The checks that make up a backend's `probe`. Each says what it saw, or what it looked for and did not find.

Absence is an answer, not an error. So is an exception of a vendor's library: that check says so, and the others are
asked all the same.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from gcr.backend import Capability, Device
from gcr.devices import is_simulated
from gcr.errors import GcrError


class Lacking(Exception):
    """A check did not find its object; the text is the evidence."""


class Check(Struct, frozen=True):
    """`evidence` returns what was seen; it raises Lacking, or an error of gcr, with what was seen instead."""

    name: str
    evidence: Callable[[], str]
    remedy: str
    needed: bool = True


def answers(checks: Sequence[Check]) -> list[Capability]:
    """Every check's answer, in their order."""
    return [_answer(check) for check in checks]


def _answer(check: Check) -> Capability:
    try:
        return Capability(check.name, True, check.evidence(), needed=check.needed)
    except (Lacking, GcrError) as lacking:
        found = str(lacking)
    except Exception as error:  # a vendor's library or tool may break in any way
        found = f"{type(error).__name__}: {error}"
    return Capability(check.name, False, found or "no answer", check.remedy, needed=check.needed)


def named(devices: Sequence[Device]) -> str:
    """The evidence for devices: each by name and UUID, and whether they are simulated. Raises Lacking."""
    if not devices:
        raise Lacking("no device")
    names = ", ".join(f"{each.name} ({each.uuid})" for each in devices)
    return f"SIMULATED: {names}" if any(is_simulated(each.name) for each in devices) else names


def all_have(what: str, has: Callable[[int], object], count: int) -> str:
    """The evidence for what each of `count` devices must have, asked by ordinal. Raises Lacking."""
    if not count:
        raise Lacking("no device")
    for ordinal in range(count):
        if not has(ordinal):
            raise Lacking(f"device {ordinal} has no {what}")
    return f"every device has {what}"
