"""Two nodes with one job, for the tests of images over nodes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cut_images import FEW, ODD, names_of, runs_again
from cut_nodes import Nodes
from dumps import CRIU, skip_without_criu
from machine import Machine


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Yields two nodes with a job of two ranks each, for all tests: each of them leaves the job running."""
    skip_without_criu()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCR_CRIU", str(CRIU))
        made = Nodes.below(tmp_path_factory.mktemp("cut"), FEW)
        try:
            made.begin_filed()
            yield made
        finally:
            made.close()


@pytest.fixture
def nodes(standing: Nodes) -> Iterator[Nodes]:
    yield standing
    for machine in standing.machines:
        machine.inject()
    runs_again(standing)
    for machine in standing.machines:
        names = names_of(machine)
        if names:
            assert machine.gcr("rm", *names).code == 0


@pytest.fixture
def odd(nodes: Nodes) -> Machine:
    return nodes.machines[ODD]
