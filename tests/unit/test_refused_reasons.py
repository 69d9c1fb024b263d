"""The page on limitations tells of each state that is refused, and of each that the driver carries."""

import re
from pathlib import Path

from gcr.engine.admit import SEEN_FROM_OUTSIDE
from gcr.protocol.wire import CARRIED_REASONS, REFUSED_REASONS, Reason

ROOT = Path(__file__).parents[2]
LIMITATIONS = ROOT / "docs" / "limitations.md"


def names(reasons: frozenset[Reason]) -> set[str]:
    return {reason.name.lower() for reason in reasons}


def sections(title: str) -> set[str]:
    """Returns the headings below `title` in the page on limitations."""
    text = LIMITATIONS.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^### (\w+)$", text, re.MULTILINE))


def test_the_page_on_limitations_tells_refused_and_carried_apart():
    assert sections("Refused") == names(REFUSED_REASONS) | SEEN_FROM_OUTSIDE
    assert sections("Carried by the driver") == names(CARRIED_REASONS)
