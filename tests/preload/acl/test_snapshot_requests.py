"""SNAPSHOT: which step the agent makes in which phase, told by a daemon that shares no code with it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests/preload/agent"))

from agent import Agent  # noqa: E402
from oracle import Daemon  # noqa: E402
from packets import DRIVER, HANDED_OVER, SNAPSHOT, WRONG_PHASE, WRONG_TRANSACTION, Refused  # noqa: E402

from gcr.native import shim_path, sim_dir  # noqa: E402

IMPORTED = (ROOT / "tests" / "victims", ROOT / "core", ROOT / "backends" / "ascend")
LOOK, LOCK, BACKUP, RESTORE, UNLOCK = range(5)
NONE_SUCH, RUNNING, LOCKED, SAVED = range(4)
BAD_FRAME, REFUSED = 1, 10
SECONDS = 20


class Target:
    def __init__(self, folder: Path, release: str = "") -> None:
        libraries = sim_dir(f"ascend-{release}" if release else "ascend")
        self.daemon = Daemon(folder / "socket")
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "LD_PRELOAD": str(shim_path()),
            "GCR_SIM_KERNELS": str(libraries / "kernels.so"),
            "GCR_SIM_STATE": str(folder / "sim"),
            "GCR_SOCKET": str(folder / "socket"),
            "PYTHONPATH": os.pathsep.join(map(str, IMPORTED)),
        }
        command = [sys.executable, str(ROOT / "tests/victims/acl_told.py")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        self.agent: Agent = self.daemon.accept()
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, line: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def step(self, step: int, transaction: int | None = None) -> int:
        """The phase after it."""
        named = self.agent.transaction if transaction is None else transaction
        payload, _ = self.agent.ask("snapshot", SNAPSHOT.pack(named, step, 0))
        return int(SNAPSHOT.unpack(payload)[1])

    def refused(self, step: int, transaction: int | None = None) -> int:
        with pytest.raises(Refused) as caught:
            self.step(step, transaction)
        return caught.value.code

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self.daemon.close()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path)
    yield made
    made.end()


def test_a_look_is_allowed_at_any_time_and_a_step_only_when_frozen(target: Target) -> None:
    assert target.step(LOOK) == RUNNING
    assert [target.refused(step) for step in (LOCK, BACKUP, RESTORE, UNLOCK)] == [WRONG_PHASE] * 4
    target.agent.export()
    target.agent.quiesce()
    assert target.refused(LOCK) == WRONG_PHASE
    target.agent.count("hand_over")
    assert target.refused(LOCK) == WRONG_PHASE, "handed over, but not frozen"
    assert target.step(LOOK) == RUNNING
    target.agent.ask("freeze")
    assert target.refused(LOCK, transaction=99) == WRONG_TRANSACTION
    assert target.refused(5) == BAD_FRAME
    assert target.step(LOCK) == LOCKED


def test_every_step_in_order_and_none_out_of_it(target: Target) -> None:
    assert target.tell("alloc 3 300000") == "ok"
    ids = [handle.id for handle in target.agent.export()]
    target.agent.quiesce()
    handles, _ = target.agent.count("hand_over")
    assert handles == len(ids)
    target.agent.ask("freeze")
    assert [target.refused(step) for step in (BACKUP, RESTORE, UNLOCK)] == [DRIVER] * 3
    assert target.step(LOCK) == LOCKED
    assert target.refused(LOCK) == DRIVER
    assert target.step(BACKUP) == SAVED
    assert target.agent.status().phase == HANDED_OVER, "the agent answers while the runtime holds calls back"
    assert target.step(RESTORE) == LOCKED
    assert target.step(UNLOCK) == RUNNING
    target.agent.ask("thaw")
    target.agent.create(ids)
    target.agent.count("map")
    target.agent.ask("resume")
    assert target.tell("alloc 1 1000") == "ok"


def test_from_a_backup_the_way_back_is_unlock(target: Target) -> None:
    target.agent.export()
    target.agent.quiesce()
    target.agent.count("hand_over")
    target.agent.ask("freeze")
    assert [target.step(step) for step in (LOCK, BACKUP, UNLOCK)] == [LOCKED, SAVED, RUNNING]


def test_a_runtime_without_snapshots_says_so(tmp_path: Path) -> None:
    target = Target(tmp_path, "8.0")
    try:
        assert target.step(LOOK) == NONE_SUCH
        target.agent.export()
        target.agent.quiesce()
        target.agent.count("hand_over")
        target.agent.ask("freeze")
        assert target.refused(LOCK) == REFUSED
    finally:
        target.end()
