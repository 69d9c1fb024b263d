"""Lists of refused states agree: the header's, the shim's, the message of each refusal, and docs/limitations.md."""

import re
from pathlib import Path

from gcr.engine.admit import WHY
from gcr.protocol.wire import CARRIED_REASONS, REFUSED_REASONS, Reason

ROOT = Path(__file__).parents[2]
COVERAGE = ROOT / "shim" / "src" / "core" / "coverage.cpp"
LIMITATIONS = ROOT / "docs" / "limitations.md"
BY_OTHERS = {"uncounted", "nccl", "verbs", "mig", "not_permitted", "moved", "deepbind"}  # no record of the shim's


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def names(reasons: frozenset[Reason]) -> set[str]:
    return {reason.name.lower() for reason in reasons}


def sections(title: str) -> set[str]:
    """Returns the headings below `title` in the page on limitations."""
    text = LIMITATIONS.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^### (\w+)$", text, re.MULTILINE))


def test_every_refused_reason_has_a_message():
    assert set(WHY) == REFUSED_REASONS | {Reason.COUNT}


def test_the_shim_lets_pass_what_the_header_calls_carried():
    body = COVERAGE.read_text().partition("bool must_refuse(Reason reason) {")[2].partition("\n}\n")[0]
    assert {snake(name) for name in re.findall(r"case wire::kReason(\w+):", body)} == names(CARRIED_REASONS)


def test_the_page_on_limitations_tells_refused_and_carried_apart():
    assert sections("Refused") == names(REFUSED_REASONS) | BY_OTHERS
    assert sections("Carried by the driver") == names(CARRIED_REASONS)
