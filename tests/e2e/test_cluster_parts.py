"""A node's part of a job on several nodes is ended by the id of its start, by a carrier that knows nothing of it.

Also before the part has used a device, when the daemon knows its program alone.
"""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from machine import PATIENCE, Machine, alive, until

from gcr.cluster import carrying
from gcr.cluster.plugins import RUN, Program, Word
from gcr.errors import DeadlinePassed
from gcr.processes import descendants


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, made.env[name])
    monkeypatch.delenv("GCR_SOCKET", raising=False)
    (tmp_path / "run").mkdir(mode=0o700)
    yield made
    made.close()


def lives(log: Path) -> None:
    """Waits until a program has printed two more lines."""
    before = log.stat().st_size
    until(lambda: log.stat().st_size > before + 1 or None, PATIENCE, "it goes on")


def test_a_part_ends_by_the_id_of_its_start_and_no_other_job_of_its_name_does(machine: Machine) -> None:
    program = Program(["sh", "-c", "sleep 60 & while :; do echo; sleep 0.05; done"], "/", {RUN: "mine"})
    log = Path(carrying.started("train", program, machine.env))
    lives(log)
    carrying.end("train", "another")
    carrying.end("other", "mine")
    lives(log)
    job = machine.job("train")
    assert job
    tree = [job["pid"], *descendants(job["pid"])]
    assert len(tree) > 1
    carrying.end("train", "mine")
    until(lambda: not any(map(alive, tree)) or None, PATIENCE, "it has ended")


def test_a_request_whose_daemon_says_nothing_gives_its_thread_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client's own deadline fails: here its thread hangs."""
    machine.gcr("daemon", "start")
    monkeypatch.setattr(carrying, "GRACE", 0.0)
    monkeypatch.setattr(carrying, "LATE_S", 0.1)
    never: SimpleQueue[None] = SimpleQueue()

    def ask(*_: object) -> None:
        never.get()

    monkeypatch.setattr(carrying._Asking, "ask", ask)
    (word,) = carrying.Carrier().carried("token", "ping", {}, 0.1)
    assert isinstance(word, Word) and isinstance(word.error(), DeadlinePassed)
    never.put(None)
