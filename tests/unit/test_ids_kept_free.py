"""The ids of a tree that comes back stay free while others start processes. Each test has a namespace of ids."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gcr.criu import saving, tree
from gcr.criu.tree import SavedTree
from gcr.imageerrors import NotRestored
from gcr.processes import identify

STARTED = 40
LEAST = 300  # the kernel gives the ids below it once only

# The next id is `first`; negative ones are counted from the end. Those wanted are waited for, and then others start
# processes. Says which ids these have, and which were wanted.
PROGRAM = """
import json, subprocess, sys
from gcr.criu.saving import wait_until_free
many = int(open("/proc/sys/kernel/pid_max").read())
first, *wanted = [number % many for number in map(int, sys.argv[2:])]
open("/proc/sys/kernel/ns_last_pid", "w").write(str(first - 1))
wait_until_free(wanted)
others = [subprocess.Popen(["true"]) for _ in range(int(sys.argv[1]))]
for other in others:
    other.wait()
print(json.dumps([[other.pid for other in others], wanted]))
"""

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root makes a namespace of ids")


def ids_of_others(first: int, wanted: Sequence[int]) -> tuple[list[int], list[int]]:
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROGRAM]
    numbers = [str(number) for number in (STARTED, first, *wanted)]
    done = subprocess.run([*words, *numbers], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    taken, wanted = json.loads(done.stdout)
    return taken, wanted


@only_root
@pytest.mark.parametrize(
    ("first", "wanted"),
    [(1000, [1000]), (1000, [1003, 1001, 1030]), (-5, [-3, -1]), (-5, [LEAST, -3, LEAST + 5])],
    ids=["next", "several", "last", "around"],
)
def test_others_that_start_do_not_take_the_ids_of_a_tree(first: int, wanted: Sequence[int]) -> None:
    taken, kept = ids_of_others(first, wanted)
    assert not {*taken} & {*kept}


@only_root
def test_nor_do_they_take_the_ids_of_another_tree_that_began_at_the_same_time() -> None:
    """Each of the two comes back in its turn; the ids of the one are among those of the other, or shortly behind."""
    taken, _ = ids_of_others(1000, [1002, 1010])
    assert not {*taken} & {*range(1000, 3000)}


# Two trees come back at a time, each round anew, and both dwell between reading the last id and choosing another. Says
# the last id that the kernel gave before a round, and behind it.
TWO = """
import json, os, sys, time
from multiprocessing import Barrier
from gcr.criu.saving import wait_until_free
last, (near, far), rounds = "/proc/sys/kernel/ns_last_pid", map(int, sys.argv[2:]), int(sys.argv[1])
read = os.pread
os.pread = lambda *which: (read(*which), time.sleep(0.001))[0]
meet, child = Barrier(2), os.fork()
seen = []
for each in range(rounds):
    base = 1000 + each
    if child:
        open(last, "w").write(str(base))
    meet.wait(30)
    wait_until_free([base + (far if child else near)])
    meet.wait(30)
    if child:
        seen.append([base, int(open(last).read())])
if child:
    os.waitpid(child, 0)
    print(json.dumps(seen))
"""


@only_root
def test_of_two_trees_at_a_time_neither_has_the_kernel_go_back_to_the_ids_of_the_other() -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", TWO, "100", "2", "10000"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) == 100
    assert [behind - before for before, behind in seen if behind - before < 10000] == []


def test_a_lock_that_is_held_for_long_is_named_and_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    last = tmp_path / "ns_last_pid"
    last.write_text("1000")
    monkeypatch.setattr(saving, "_LAST_PID", last)
    monkeypatch.setattr(saving, "_LOCKED_S", 0.05)
    caplog.set_level("INFO", "gcr.criu")
    with saving._locked(last):
        saving.wait_until_free([4_000_000])
    assert "are not kept free: [Errno 16] another process has it locked" in caplog.text
    assert last.read_text() == "1000"


@only_root
@pytest.mark.parametrize("wanted", [[990], [1000 + 40000]], ids=["behind", "far"])
def test_ids_that_others_do_not_come_to_are_left_alone(wanted: Sequence[int]) -> None:
    taken, _ = ids_of_others(1000, wanted)
    assert taken == [*range(1000, 1000 + STARTED)]


def test_a_thread_s_id_that_another_process_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_REAPED_S", 0.1)
    saved = SavedTree(
        pids=(4000000,), threads=(os.getpid(),), joins=False, streams={}, written=(), files=(), machine="", kernel=""
    )
    said = list[str]()
    monkeypatch.setattr(saving, "restore", lambda *asked: asked[-2]())
    with pytest.raises(NotRestored, match=f"pid {os.getpid()} is in use"):
        tree.bring_back(
            Path("criu"), tmp_path, saved, {}, (), 1.0, pytest.fail, pytest.fail, lambda: said.append("ready")
        )
    assert said == ["ready"]


def test_the_daemon_is_asked_once_for_ids_that_are_in_use() -> None:
    asked = []
    with subprocess.Popen(["sleep", "60"]) as other:

        def vacate(ids: Sequence[int]) -> None:
            asked.append([*ids])
            other.kill()
            other.wait()

        saving.wait_until_free([other.pid, 4_000_000], vacate)
    assert asked == [[other.pid]]


def test_the_id_of_a_group_that_outlives_its_leader_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives such an id to no process, and has none to show."""
    words = ["sh", "-c", "sleep 60 > /dev/null & echo"]
    leader = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    leader.communicate(timeout=30)
    assert identify(leader.pid) is None
    try:
        with monkeypatch.context() as patched, pytest.raises(NotRestored, match=f"pid {leader.pid} is in use"):
            patched.setattr(saving, "_REAPED_S", 0.1)
            saving.wait_until_free([leader.pid])
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
    saving.wait_until_free([leader.pid])
