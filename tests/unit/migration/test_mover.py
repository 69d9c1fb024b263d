"""The command that moves a job is gone only where this machine and space of pids had it, and it has ended."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from gcr.job import mover as module
from gcr.job.mover import Fate, Mover
from gcr.processes import identify


def test_a_process_of_this_machine_is_alive_until_it_has_ended() -> None:
    assert Mover.ourselves().fate is Fate.ALIVE
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        found = identify(other.pid)
        assert found
        moving = replace(Mover.ourselves(), pid=other.pid, start=found.start_time)
        assert moving.fate is Fate.ALIVE
        other.communicate(b"\n")
    assert moving.fate is Fate.GONE
    assert replace(Mover.ourselves(), start=1).fate is Fate.GONE  # a later process has its pid


@pytest.mark.parametrize("elsewhere", [{"boot": "another"}, {"space": "pid:[1]"}, {"boot": ""}, {"start": 0}])
def test_a_process_of_another_machine_may_live(elsewhere: dict[str, str | int]) -> None:
    assert replace(Mover.ourselves(), **{"pid": 1 << 30, **elsewhere}).fate is Fate.UNKNOWN


def test_a_process_that_proc_hides_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = Mover.ourselves()
    monkeypatch.setattr(module, "alive", lambda _identity: False)
    monkeypatch.setattr(module, "identify", lambda _pid: None)
    assert moving.fate is Fate.UNKNOWN
    assert replace(moving, pid=_free_pid()).fate is Fate.GONE


def _free_pid() -> int:
    done = subprocess.Popen(["true"])
    done.wait()
    assert identify(done.pid) is None
    return done.pid
