"""Ranks of PyTorch, forked from one process for all tests of a worker. Without PyTorch the tests are skipped."""

import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rank_server import Order, Outcome

HERE = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    """Has these tests run one after the other in one worker: each worker that runs one imports PyTorch for it."""
    item.add_marker("first")


class Ranks:
    """Runs programs of rank_programs and training_programs on groups of ranks."""

    def __init__(self, server: "subprocess.Popen[bytes]") -> None:
        self._server = server

    def ended(self, program: str, world: int, **arguments: Any) -> Sequence[Outcome]:
        """Returns the end of every rank."""
        assert self._server.stdin and self._server.stdout
        pickle.dump(tuple(Order(program, world, arguments)), self._server.stdin)
        self._server.stdin.flush()
        return [Outcome(*each) for each in pickle.load(self._server.stdout)]

    def __call__(self, program: str, world: int = 1, **arguments: Any) -> Sequence[Any]:
        """Returns what the program returned on each rank; each must have come to its end."""
        found = self.ended(program, world, **arguments)
        assert all(each.code == 0 and not each.error for each in found), "\n".join(map(str, found))
        return [each.result for each in found]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    if not importlib.util.find_spec("torch"):
        pytest.skip("PyTorch is not installed")
    command = [sys.executable, "-W", "error::DeprecationWarning:gcr_torch", str(HERE / "rank_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        yield Ranks(server)
        assert server.stdin
        server.stdin.close()
        server.wait(20)
