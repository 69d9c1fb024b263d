"""Answers of the conformance program on a real device, and those that differ under gcr on purpose."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    bare: str
    shimmed: str
    why: str = ""


def recorded() -> list[str]:
    lines = (SOURCES / "recorded_h200.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def listed() -> Iterator[Difference]:
    why = ""
    for line in (SOURCES / "differs_under_shim.txt").read_text().splitlines():
        if line.startswith("#!"):
            why = line[2:].strip()
        elif line and not line.startswith("#"):
            name, answers = line.split(": ", 1)
            bare, shimmed = answers.split(" -> ")
            yield Difference(name, bare, shimmed, why)


def as_listed(bare: list[str]) -> list[str]:
    """The same lines with the answers that are listed to differ under gcr."""
    answers = {f"{each.name}: {each.bare}": f"{each.name}: {each.shimmed}" for each in listed()}
    return [answers.get(line, line) for line in bare]
