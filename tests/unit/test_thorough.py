"""The tests that `make test` leaves out: tools/thorough.py and tests/thorough.txt."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("thorough", ROOT / "tools/thorough.py")
assert spec
assert spec.loader
thorough = importlib.util.module_from_spec(spec)
spec.loader.exec_module(thorough)

CASE = '<testcase classname="{}" name="{}" time="{}"/>'
TIMES = [
    ("tests.e2e.test_deaths", "test_a_death[worker]", 3.0),
    ("tests.e2e.test_deaths", "test_a_death[daemon]", 4.0),
    ("tests.e2e.test_deaths", "test_a_death[agent]", 1.0),
    ("tests.e2e.test_deaths", "test_both[one]", 9.0),
    ("tests.e2e.test_deaths", "test_both[other]", 8.0),
    ("tests.e2e.test_deaths", "test_quick", 0.1),
    ("tests.contract.backend.test_nvidia.TestContract", "test_one", 60.0),
    ("tests.contract.backend.test_nvidia.TestContract", "test_other", 70.0),
    ("tests.architecture.test_layers", "test_layers", 50.0),
    ("tests.architecture.test_layers", "test_more", 60.0),
]


def test_the_shortest_of_each_file_and_of_each_quick_function_stay() -> None:
    times = "".join(CASE.format(*each) for each in TIMES)
    assert thorough.left_out(thorough.read(f"<testsuites>{times}</testsuites>")) == [
        "tests/contract/backend/test_nvidia.py::TestContract::test_other",
        "tests/e2e/test_deaths.py::test_a_death[daemon]",
        "tests/e2e/test_deaths.py::test_a_death[worker]",
        "tests/e2e/test_deaths.py::test_both",
    ]


def test_every_function_that_is_named_is_there() -> None:
    """A test that was renamed is named here by its new name, or runs each time."""
    names = [line for line in (ROOT / "tests/thorough.txt").read_text().splitlines() if not line.startswith("#")]
    assert names
    for name in names:
        file, *classes, function = name.split("[")[0].split("::")
        text = (ROOT / file).read_text()
        assert classes or f"def {function}(" in text, name  # a class may have it from a contract
