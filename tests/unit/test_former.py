"""Remains of jobs that were suspended when the machine went down."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gcr import processes
from gcr.job import runs
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.job.journal import Journal
from gcr.job.runs import Run
from gcr.rendezvous import former
from gcr.rendezvous.folder import DaemonFolder
from gcr.runtime import socket_path

RECORD = DecisionRecord("llm", 1, "checkpoint", 1.0, (ProcessDecision(7, 8, {}, {}),), "nvidia", True)
KEPT = KeptImage("/store", "warm")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Returns the folder of a daemon at the same socket, before the machine was started again."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("GCR_SOCKET", raising=False)
    made = DaemonFolder.of(socket_path()).make(socket_path())
    before = made.path.with_name("before")
    made.path.rename(before)
    about = json.loads((before / "about.json").read_text())
    (before / "about.json").write_text(json.dumps({**about, "boot": "1"}))
    return DaemonFolder(before)


def run_of(job: str, boot: str) -> Run:
    made = Run(
        id=f"id{boot}"[:6],
        job=job,
        pid=7,
        start=8,
        supervisor=9,
        supervisor_start=10,
        boot=boot,
        space="",
        began=1.0,
        command=("x",),
        log=None,
        socket=str(socket_path()),
    )
    runs.write(made)
    return made


def test_an_image_that_alone_has_the_bytes_is_told_until_it_is_removed(folder):
    journal = Journal(folder.journal)
    journal.decide(replace(RECORD, image=KEPT))
    journal.decide(replace(RECORD, job="ddp"))
    former.settle()
    former.settle()
    (left,) = former.left()
    assert left.row() == {"job": "llm", "image": "warm", "store": "/store"}
    former.forget(Path("/elsewhere"), ["warm"])
    assert former.left()
    former.forget(Path("/store"), ["warm"])
    assert not former.left() and not folder.path.exists()


def test_a_job_that_a_containers_runtime_had_was_stopped(folder):
    made = run_of("llm", "1")
    Journal(folder.journal).decide(replace(RECORD, image=KEPT, away="t"))
    former.settle()
    assert not former.left() and not folder.path.exists()
    assert runs.again(made).end.said() == "stopped into image warm"
    assert runs.way_back(runs.again(made)) == "gcr restore --image warm --store /store"


def test_ends_are_noted_for_jobs_of_that_boot_alone(folder):
    run_of("llm", "1")
    run_of("ddp", processes.boot_id())
    for name in ("llm", "ddp"):
        Journal(folder.journal).decide(replace(RECORD, job=name))
    former.settle()
    ends = {run.job: run.end.was for run in runs.all_runs() if run.end}
    assert ends["llm"] == "suspended" and ends.get("ddp") is None
    assert not folder.path.exists()


def test_a_record_that_does_not_read_back_stays(folder):
    Journal(folder.journal)
    (folder.journal / "llm.json").write_bytes(b"")
    former.settle()
    assert folder.path.exists() and not former.left()
