"""Ray Train with a Checkpointer: Ray starts all workers again after one was killed; they go on from the last save."""

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from machine import PATIENCE, until
from ray_nodes import RayNodes, pids, title, two_nodes

from gcr.checkpoints.run import run_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("pyarrow") and find_spec("pandas")), reason="Ray Train is not installed"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"
STEPS, EVERY = 2000, 50
ENDED_S = 300.0


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with two_nodes() as made:
        yield made


def begun(nodes: RayNodes, store: Path) -> "subprocess.Popen[str]":
    words = ["--store", str(store), "--workers", "2", "--steps", str(STEPS), "--every", str(EVERY)]
    return subprocess.Popen([sys.executable, str(EXAMPLE), *words], env=nodes.env, stdout=subprocess.PIPE, text=True)


def result(program: "subprocess.Popen[str]") -> dict[str, object]:
    out = program.communicate(timeout=ENDED_S)[0]
    line = next(line for line in out.splitlines() if line.startswith("result "))
    return dict(ast.literal_eval(line.removeprefix("result ")))


def test_a_training_whose_worker_is_killed_ends_as_an_undisturbed_one(nodes: RayNodes, tmp_path: Path) -> None:
    whole = result(begun(nodes, tmp_path / "whole"))
    store = tmp_path / "disturbed"
    program = begun(nodes, store)
    until(lambda: store.exists() and (run_in(store, "train").latest() or 0) >= 5 * EVERY, PATIENCE, "steps are saved")
    workers = [pid for pid in map(int, pids()) if "RayTrainWorker" in title(pid)]
    os.kill(workers[0], signal.SIGKILL)
    found = result(program)
    assert len(workers) == 2 and whole["from"] == 0
    assert int(str(found["from"])) >= 5 * EVERY and found["parameters"] == whole["parameters"]
