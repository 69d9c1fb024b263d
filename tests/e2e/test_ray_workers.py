"""A Ray cluster under gcr: its workers are suspended at one cut and come back, and Ray's program does not notice."""

import hashlib
import subprocess
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from machine import PATIENCE, until
from ray_nodes import RayNodes, two_nodes

pytestmark = pytest.mark.slow

WORDS = 1 << 18  # 1 MiB
PROGRAM = Path(__file__).parents[2] / "examples" / "ray_workers.py"
EXAMPLE = (sys.executable, str(PROGRAM), "--workers", "2", "--steps", "1000000", "--mib", "1")


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with two_nodes(under="ray", gpus=1) as made:
        yield made


def expected(seed: int) -> Iterator[str]:
    """Yields the digests of a worker, computed in host memory."""
    numbers, step = array("I", [seed] * WORDS), 0
    while True:
        yield hashlib.sha256(numbers).hexdigest()[:16]
        value = (numbers[step % WORDS] * 0x9E3779B1 + step) % (1 << 32)
        first = value % WORDS
        numbers[first:] = array("I", [value]) * (WORDS - first)
        step += 1


def _hear(lines: Iterable[str], said: list[str]) -> None:
    for line in lines:
        said.append(line)


def test_workers_of_ray_on_two_nodes_go_and_come_back_at_one_cut(nodes: RayNodes) -> None:
    assert nodes.gcr("cluster", "up", "--no-exchange").code == 0
    said = list[str]()
    with subprocess.Popen([*EXAMPLE], env=nodes.env, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        hearing = Thread(target=_hear, args=(program.stdout, said))
        hearing.start()
        until(lambda: said or None, PATIENCE, "the workers have begun")
        gone = nodes.gcr("cluster", "checkpoint", "ray")
        assert (gone.code, gone.body.get("outcome")) == (0, "done"), gone
        assert {each["node"]: each["report"]["vram_after_bytes"] for each in gone.body["nodes"]} == {"one": 0, "two": 0}
        assert all(each["report"]["bytes"] >= 4 * WORDS for each in gone.body["nodes"])
        stood = len(said)
        back = nodes.gcr("cluster", "restore", "ray")
        assert (back.code, back.body.get("cut")) == (0, gone.body["cut"]), back
        until(lambda: len(said) > stood + 20 or None, PATIENCE, "the workers go on")
        program.terminate()
        hearing.join()
    wanted = zip(range(len(said)), expected(0), expected(1), strict=False)
    assert said[:-1] == [f"{number} {one} {two}\n" for number, one, two in wanted][:-1]
