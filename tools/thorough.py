"""Writes tests/thorough.txt: the tests that `make test` leaves to `make test-all`, so that it takes minutes.

    python -m pytest -m "not slow and not alone" --numprocesses 6 --dist worksteal --junitxml=times.xml
    python tools/thorough.py times.xml > tests/thorough.txt

A test that takes longer than LONG is left out, but for the shortest one of each function, if that takes less than
LONGEST, and the shortest one of each file. So every function that is quick, and every file, is run each time.
All tests of ALWAYS are.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct

ALWAYS = "tests/architecture/"
LONG, LONGEST = 1.2, 2.5  # seconds, of six processes on two cores
HEAD = """\
# Left out by `make test`, run by `make test-all`. Written by tools/thorough.py; the shortest of each file stay.
"""


class Timed(Struct, frozen=True, order=True):
    """A test and its seconds."""

    seconds: float
    file: str
    name: str

    @property
    def function(self) -> str:
        return self.name.split("[")[0]

    @property
    def node(self) -> str:
        return f"{self.file}::{self.name}"


def read(text: str) -> Iterator[Timed]:
    """Yields the tests of a JUnit file."""
    for case in ElementTree.fromstring(text).iter("testcase"):
        file, inner = _place(case.attrib["classname"].split("."))
        yield Timed(float(case.attrib["time"]), file, "::".join((*inner, case.attrib["name"])))


def _place(parts: list[str]) -> tuple[str, list[str]]:
    """Returns the file of a dotted name, and the classes in it."""
    classes = [part for part in parts if part.startswith("Test")]
    return "/".join(parts[: len(parts) - len(classes)]) + ".py", classes


def left_out(tests: Iterable[Timed]) -> list[str]:
    """Returns patterns of tests, sorted; a function of which all are left out is named without its parameters."""
    files = _grouped((each.file, each) for each in tests if not each.file.startswith(ALWAYS))
    return sorted(node for of_file in files.values() for node in _left_out_of(of_file))


def _left_out_of(of_file: list[Timed]) -> Iterator[str]:
    """`of_file`: the tests of one file."""
    first = min(of_file)
    for of_function in _grouped((each.function, each) for each in of_file).values():
        quick = min(of_function)
        kept = {first, quick} if quick.seconds < LONGEST else {first}
        out = [each for each in of_function if each.seconds >= LONG and each not in kept]
        if len(out) == len(of_function):
            yield f"{out[0].file}::{out[0].function}"
        else:
            yield from (each.node for each in out)


def _grouped(pairs: Iterable[tuple[str, Timed]]) -> Mapping[str, list[Timed]]:
    found = defaultdict(list)
    for key, each in pairs:
        found[key].append(each)
    return found


if __name__ == "__main__":
    print(HEAD + "\n".join(left_out(read(Path(sys.argv[1]).read_text()))))
