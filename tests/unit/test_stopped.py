"""The notes beside a process tree that goes into an image: the job's, and the tree's."""

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from gcr.criu import tree
from gcr.criu.files import FileSeen
from gcr.criu.preflight.obstacle import Kind, Options
from gcr.criu.tree import SavedTree
from gcr.imageerrors import Damaged, FilesChanged, NotRestored, WrongImage
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.job.stopped import StoppedJob
from gcr.processes import identify

OWN = os.getpid()
GONE = 4_194_305  # beyond the kernel's largest pid
KEPT = KeptImage("/store", "night")
TREE = SavedTree(
    pids=(7, 8),
    joins=True,
    streams={"pipe:[5]": 1},
    written=("/log", "/out"),
    files=(),
    machine=os.uname().machine,
    kernel=os.uname().release,
)


def stopped(pid: int = OWN) -> StoppedJob:
    decision = DecisionRecord(
        "llm", 9, "checkpoint", 1.5, (ProcessDecision(pid, 3, {"GPU-1": 5}, {}),), "nvidia", False
    )
    return StoppedJob(token="t", argv=("python", "a b"), root=pid, socket="/run/s", decision=decision)


def test_a_job_reads_back_as_it_was_written(tmp_path: Path) -> None:
    stopped().write(tmp_path)
    assert StoppedJob.read(tmp_path) == stopped()


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"decision": 5}', b'{"token": "t", "decision": "{}"}'])
def test_what_is_no_job_is_damage(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "job.json").write_bytes(text)
    with pytest.raises(Damaged):
        StoppedJob.read(tmp_path)


def test_its_decision_is_about_the_processes_of_now_and_names_their_image() -> None:
    record, now = stopped().as_restored(KEPT), identify(OWN)
    assert now
    (process,) = record.processes
    assert (process.pid, process.start_time, process.stack) == (now.pid, now.start_time, now.stack)
    assert (process.bytes, record.image, record.transaction) == ({"GPU-1": 5}, KEPT, 9)
    with pytest.raises(NotRestored, match=f"process {GONE} is not there"):
        stopped(GONE).as_restored(KEPT)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]"])
def test_what_is_no_tree_is_damage(tmp_path: Path, text: bytes) -> None:
    (tmp_path / tree.NOTE).write_bytes(text)
    with pytest.raises(Damaged):
        tree.saved_in(tmp_path)


def test_streams_are_pipes_and_the_log() -> None:
    assert tree.streams_of(TREE, None) == {"pipe:[5]": 1}
    assert tree.streams_of(TREE, "/log") == {"pipe:[5]": 1, "log": 1}
    assert tree.streams_of(TREE, "/another/node/keeps/it/here/log") == {"pipe:[5]": 1, "log": 1}


def test_files_that_changed_are_named_but_the_log_is_not_looked_at(tmp_path: Path) -> None:
    files = tuple(FileSeen(f"{tmp_path}/{number}", 1, "", False) for number in range(5))
    saved = replace(TREE, files=files)
    with pytest.raises(FilesChanged, match=r"/0: it is gone; .*/1: .*/2: it is gone; and 2 more"):
        tree.refuse_changed(saved, None)
    tree.refuse_changed(replace(TREE, files=files[:1]), files[0].path)


def test_another_machine_and_an_older_kernel_are_refused() -> None:
    with pytest.raises(WrongImage, match="ran on vax"):
        tree.refuse_changed(replace(TREE, machine="vax"), None)
    with pytest.raises(WrongImage, match=r"ran on Linux 999.1.2"):
        tree.refuse_changed(replace(TREE, kernel="999.1.2-gcr"), None)
    tree.refuse_changed(replace(TREE, kernel="2.6.39+"), None)


def test_a_pipe_with_an_end_elsewhere_is_in_the_way_unless_it_is_a_standard_stream() -> None:
    ours, its = os.pipe()
    words = ["sleep", "100"]
    process = subprocess.Popen(words, stdout=its, stdin=subprocess.DEVNULL, pass_fds=[its], start_new_session=True)
    try:
        pids, found = tree.looked_at(process.pid, (), Options(session=True))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)
    assert pids == [process.pid]
    assert {each.kind for each in found} == {Kind.PIPE}
    assert [each.object.split(",")[0] for each in found] == [f"descriptor {its}"]
