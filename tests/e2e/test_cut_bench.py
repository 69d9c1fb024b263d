"""The time that a cut adds: over eight simulated nodes, beside as many checkpoints that wait for no other node."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cut_nodes import JOB, TAKEN_S, Nodes
from machine import Machine
from stored import store_of

NUMBER, ROUNDS = 8, 10
MOST_S = 0.1
IMAGED, IMAGE_ROUNDS = 4, 5
MOST_OF_AN_IMAGE_S = 1.5  # three helpers more on each node, whose starts share two processors here


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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_image_over_four_nodes_adds_little_to_their_images(tmp_path: Path, criu: None):
    """Processes and all: one node alone, four at once that wait for no other, and one cut over four; there and back."""
    nodes = Nodes.below(tmp_path, IMAGED)
    try:
        nodes.begin_filed()
        found = dict[str, list[float]]()
        with ThreadPoolExecutor(IMAGED) as pool:
            for number in range(IMAGE_ROUNDS):
                one, four = f"one.{number}", f"four.{number}"
                first = nodes.machines[0]
                took(found, "one node", lambda m=first, i=one: stop(m, i))
                took(found, "one node back", lambda m=first, i=one: back(m, i))
                took(found, "four at once", lambda i=four: [*pool.map(lambda m: stop(m, i), nodes.machines)])
                took(found, "four back at once", lambda i=four: [*pool.map(lambda m: back(m, i), nodes.machines)])
                took(found, "one cut", nodes.image)
                took(found, "one cut back", nodes.come_back)
        medians = {name: statistics.median(each) for name, each in found.items()}
        print(", ".join(f"{name} {median:.2f} s" for name, median in medians.items()))
        nodes.are_right()
        assert medians["one cut"] < medians["four at once"] + MOST_OF_AN_IMAGE_S
    finally:
        nodes.close()


def stop(machine: Machine, image: str) -> None:
    done = machine.ask("checkpoint", JOB, image=image, store=str(store_of(machine)), stop=True)
    assert done.code == 0, done.body


def back(machine: Machine, image: str) -> None:
    """By the daemon, as a part of a cut comes back, but without others."""
    end = time.monotonic() + TAKEN_S
    while True:
        done = machine.ask("restore", JOB, image=image, store=str(store_of(machine)), revive=True)
        if done.code == 0 or done.body["error"]["code"] != "not_restored" or time.monotonic() > end:
            break
    assert done.code == 0, done.body


def took(found: dict[str, list[float]], name: str, do: Callable[[], object]) -> None:
    found.setdefault(name, []).append(seconds(do))


def seconds(do: Callable[[], object]) -> float:
    began = time.monotonic()
    do()
    return time.monotonic() - began
