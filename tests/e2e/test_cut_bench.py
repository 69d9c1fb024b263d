"""The time that a cut adds: over eight simulated nodes, beside as many checkpoints that wait for no other node."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cut_nodes import JOB, Nodes

NUMBER, ROUNDS = 8, 10
MOST_S = 0.1


@pytest.mark.slow
def test_a_cut_over_eight_nodes_adds_little_to_their_checkpoints(tmp_path: Path):
    """All eight share this machine's processors, so one node's checkpoint alone is no measure of them."""
    nodes = Nodes.below(tmp_path, NUMBER)
    try:
        nodes.begin()
        alone, at_once, cut = list[float](), list[float](), list[float]()
        with ThreadPoolExecutor(NUMBER) as pool:
            every = lambda command: [each.code for each in pool.map(lambda m: m.ask(command, JOB), nodes.machines)]  # noqa: E731
            for _ in range(ROUNDS):
                alone.append(seconds(lambda: nodes.machines[0].ask("checkpoint", JOB)))
                assert nodes.machines[0].ask("restore", JOB).code == 0
                at_once.append(seconds(lambda: every("checkpoint")))
                assert every("restore") == [0] * NUMBER
                cut.append(seconds(nodes.checkpoint))
                nodes.run_again()
        one, all_, one_cut = map(statistics.median, (alone, at_once, cut))
        print(f"one node {one:.3f} s, eight at once {all_:.3f} s, one cut over eight {one_cut:.3f} s")
        assert one_cut < all_ + MOST_S
    finally:
        nodes.close()


def seconds(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began
