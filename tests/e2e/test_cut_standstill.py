"""Ranks that meet in kernels over two nodes, each with a daemon of its own: one standstill, at any instant."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from tempfile import mkstemp

import pytest
from cut_nodes import JOB, Nodes
from machine import Machine, kill, until

CUTS = 20


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Yields two nodes with two ranks each, for all tests: each of them leaves the job running."""
    file, shared = mkstemp(prefix="gcr-test-", dir="/dev/shm")  # a file on a disk cannot be registered
    os.close(file)
    made = Nodes.below(tmp_path_factory.mktemp("meet"), 2)
    try:
        made.begin_meeting(Path(shared))
        yield made
    finally:
        made.close()
        Path(shared).unlink()


@pytest.fixture
def nodes(standing: Nodes) -> Iterator[Nodes]:
    yield standing
    if "suspended" in standing.states():
        standing.restore()
    standing.parts[0].ask("go")
    go_on(standing)


def epochs(nodes: Nodes) -> list[int]:
    answers = [part.ask() for part in nodes.parts]
    assert not any(answer.startswith("wrong") for answer in answers), answers
    return [int(epoch) for answer in answers for epoch in answer.split()]


def go_on(nodes: Nodes) -> None:
    """Every rank of every node has looked at its data once more, and all of it was right."""
    before = epochs(nodes)
    until(lambda: all(a > b for a, b in zip(epochs(nodes), before, strict=True)) or None, 30, "all ranks go on")


def cut_often(nodes: Nodes, cuts: int) -> list[int]:
    """Suspends the job at random instants and brings it back. Returns the orders to each node's ranks that it took."""
    rng, orders, took = Random(7), [], []
    for _ in range(cuts):
        time.sleep(rng.random() * 0.05)
        links = nodes.links()
        done = nodes.checkpoint(links)
        assert (done.error, done.report.outcome) == (None, "done"), done
        orders += [max(link.leads for link in links.values())]
        took += [done.report.phases_s["still"] - done.report.phases_s["admitted"]]
        stopped = epochs(nodes)
        time.sleep(0.05)
        assert epochs(nodes) == stopped
        back = nodes.restore()
        assert back.error is None, back
        go_on(nodes)
    print(f"orders to a node: median {median(orders)}, {sorted(orders)}")
    print(f"milliseconds from go to the standstill: median {1000 * median(took):.0f}, {1000 * max(took):.0f} at most")
    return orders


def test_they_are_suspended_by_one_cut_at_any_instant(nodes: Nodes) -> None:
    orders = cut_often(nodes, CUTS)
    assert sum(map(bool, orders)) > CUTS // 4, orders  # else they came to rest by themselves


def test_a_rank_in_its_own_code_is_named_with_its_node_and_all_run_on(nodes: Nodes) -> None:
    held = stay(nodes)
    done = nodes.checkpoint(still_s=1.0)
    assert done.error
    assert (done.error.code, done.error.exit, done.report.outcome) == ("cut_failed", 4, "taken_back"), done
    message = done.error.message
    assert "of node n1 waits in cross_device_reduce on stream 0x" in message
    assert "of node n0 is in its own code" in message
    assert nodes.states() == ["running"] * 2
    assert epochs(nodes) == held


def test_a_daemon_that_dies_while_all_are_led_has_all_run_on(nodes: Nodes) -> None:
    stay(nodes)
    links = nodes.links()
    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(nodes.checkpoint, links)
        until(lambda: all(link.leads > 2 for link in links.values()), 10, "all ranks are led")
        assert [barrier(machine) for machine in nodes.machines] == ["apart"] * 2
        kill(nodes.machines[1].daemon())
        done = cutting.result(60)
    assert done.report.outcome in ("taken_back", "unsettled"), done
    assert nodes.states() == ["running"] * 2


def test_a_coordinator_that_dies_while_all_are_led_has_all_run_on(nodes: Nodes) -> None:
    stay(nodes)
    command = nodes.machines[0].begin("cluster", "checkpoint", JOB, *nodes.options())
    until(lambda: all(barrier(machine) == "apart" for machine in nodes.machines) or None, 10, "all ranks are led")
    kill(command.pid)
    assert nodes.states() == ["running"] * 2


def barrier(machine: Machine) -> str | None:
    row = machine.job(JOB)
    return row["cut"]["barrier"] if row and row["cut"] else None


def stay(nodes: Nodes) -> list[int]:
    """Has the first rank stay in its own code. Returns the epochs once all others wait for it on their devices."""
    nodes.parts[0].ask("hold 0")
    time.sleep(0.3)
    return epochs(nodes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_they_are_suspended_a_hundred_times(nodes: Nodes) -> None:
    cut_often(nodes, 100)


def test_in_the_end_every_word_of_every_rank_is_that_of_a_bare_run(standing: Nodes) -> None:
    """The last test of all, since the job ends. Each rank works out its words without a device."""
    cut_often(standing, 1)
    assert [part.ask("end") for part in standing.parts] == ["all right"] * 2
