"""Fixtures for tests of a backend: `pytest_plugins = ["gcr.testing.plugin"]` in the conftest.py at the top.

    @pytest.fixture
    def gcr_vendor(): return "acme"                    # or: @pytest.mark.parametrize("gcr_vendor", ["acme", ...])

    def test_a_swap(gcr_machine):
        job = gcr_machine.run("llm", sys.executable, "victim.py")
        before = job.ask()
        assert gcr_machine.gcr("checkpoint", "llm").code == 0
        assert gcr_machine.gcr("restore", "llm").code == 0
        assert job.ask() == before

Each test has a machine of its own, with a daemon in a private directory; all of it ends with the test, and the logs of
a failed one are shown. It is not an entry point of pytest's: installing gcr changes no test run.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gcr.testing.machine import Job, SimulatedMachine, simulated_driver

LOG_TAIL = 6000  # characters of each log of a failed test

_failed = pytest.StashKey[bool]()


@pytest.fixture
def gcr_vendor() -> str:
    """The backend of the simulated device that a test wants; a test overrides it or gives it as a parameter."""
    pytest.fail("which backend's? define a fixture gcr_vendor, or parametrize the test with it")


@pytest.fixture
def gcr_device(gcr_vendor: str, tmp_path: Path) -> Mapping[str, str]:
    """Environment that leads a process to fresh simulated devices, without gcr: what the contract classes want."""
    state = tmp_path / "machine"
    state.mkdir(mode=0o700)
    return {**simulated_driver(gcr_vendor), "GCR_SIM_STATE": str(state)}


@pytest.fixture
def gcr_machine(gcr_vendor: str, request: pytest.FixtureRequest) -> Iterator[SimulatedMachine]:
    """Simulated devices, and gcr on them."""
    with TemporaryDirectory(prefix="gcr-test-") as name:  # not tmp_path: a socket's whole path has 107 characters
        made = SimulatedMachine(Path(name), gcr_vendor)
        (made.folder / "run").mkdir(mode=0o700)
        yield made
        made.close()
        if request.node.stash.get(_failed, False):
            _show(made)


def _show(machine: SimulatedMachine) -> None:
    for name, text in machine.logs().items():
        sys.stderr.write(f"==== {name}\n{text[-LOG_TAIL:]}\n")


@pytest.fixture
def gcr_victim(gcr_machine: SimulatedMachine) -> Callable[..., Job]:
    """Starts a job from a command line: a program that prints `ready`, then answers each line with one line."""

    def start(*argv: str, name: str = "victim") -> Job:
        return gcr_machine.run(name, *argv)

    return start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed


def pytest_itemcollected(item: pytest.Item) -> None:
    """Lets `-k DrainContract` choose the tests of that contract in each class that inherits them."""
    if isinstance(item, pytest.Function):
        item.extra_keyword_matches.add(item.function.__qualname__.partition(".")[0])
