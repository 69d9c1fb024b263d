"""Images that a command keeps: by the records of all the user's daemons, of other machines and of former boots."""

import json
import os
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gcr.cli.needed import images_of_former_boots, needed_images
from gcr.daemon import inherited
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision
from gcr.job.journal import Journal
from gcr.job.migrations import Migration, Migrations, Stage
from gcr.processes import identify
from gcr.rendezvous.folder import DaemonFolder
from gcr.runtime import former_journal, socket_path


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("GCR_SOCKET", raising=False)


@pytest.fixture
def store(tmp_path):
    manifests = [
        SimpleNamespace(name="first", source=SimpleNamespace(job="llm"), only_copy=True),
        SimpleNamespace(name="other", source=SimpleNamespace(job="ddp"), only_copy=True),
        SimpleNamespace(name="plain", source=SimpleNamespace(job="llm"), only_copy=False),
    ]
    return SimpleNamespace(path=tmp_path / "store", images=SimpleNamespace(readable=lambda: manifests))


def record(tmp_path, job="llm", image="warm", pid=None):
    me = identify(pid or os.getpid())
    process = ProcessDecision(me.pid, me.start_time, {"GPU-1": 1}, {}, stack=me.stack)
    kept = KeptImage(str(tmp_path / "store"), image)
    return DecisionRecord(job, 1, "checkpoint", 1.0, (process,), "nvidia", True, image=kept)


def folder_at(socket):
    folder = DaemonFolder.of(socket)
    folder.make(socket)
    return folder


def elsewhere(folder, **facts):
    """Rewrites the folder as of another machine, or of this one before its last boot."""
    file = folder.path / "about.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))


def test_every_daemon_of_the_user_counts(store, tmp_path):
    for name in ("one", "two"):
        Journal(folder_at(tmp_path / name).journal).decide(record(tmp_path, image=name))
    other = replace(record(tmp_path, job="ddp"), image=KeptImage("/another/store", "three"))
    Journal(folder_at(tmp_path / "three").journal).decide(other)
    assert needed_images(store) == {"one": "llm", "two": "llm"}


def test_the_images_of_a_job_that_moves_count(store, tmp_path):
    moving = Migration(
        id="a" * 32, job="llm", stage=Stage.LEAVING, peer="b", store=str(store.path), images=("one", "two")
    )
    Migrations.here().begin(moving)
    Migrations.here().begin(replace(moving, job="ddp", store="/another/store", images=("three",)))
    assert needed_images(store) == {"one": "llm", "two": "llm"}


def test_a_job_with_no_process_left_needs_nothing(store, tmp_path):
    dead = record(tmp_path)
    gone = replace(dead.processes[0], start_time=1)
    Journal(folder_at(socket_path()).journal).decide(replace(dead, processes=(gone,)))
    assert needed_images(store) == {}


def test_a_damaged_record_keeps_every_only_copy_of_its_job(store, tmp_path):
    folder = folder_at(socket_path())
    Journal(folder.journal).decide(record(tmp_path))
    for file in folder.journal.iterdir():
        file.write_bytes(b"{}")
    assert needed_images(store) == {"first": "llm"}
    Journal(folder.journal).records()  # a daemon sets it aside
    assert needed_images(store) == {"first": "llm"}


def test_a_job_of_another_machine_may_still_be_suspended(store, tmp_path):
    folder = folder_at(socket_path())
    Journal(folder.journal).decide(replace(record(tmp_path), processes=()))
    elsewhere(folder, host="b", boot="1")
    assert needed_images(store) == {"warm": "llm on b"}
    assert images_of_former_boots(store) == {}


def test_a_job_of_a_former_boot_is_over_and_its_only_copy_is_told(store, tmp_path):
    folder = folder_at(socket_path())
    Journal(folder.journal).decide(record(tmp_path))
    elsewhere(folder, boot="1")
    assert needed_images(store) == {}
    assert images_of_former_boots(store) == {"warm": "llm"}


def test_records_of_an_earlier_gcr_count_and_are_taken_over_by_their_daemon(store, tmp_path, monkeypatch):
    earlier = Journal(former_journal())
    earlier.decide(record(tmp_path))
    earlier.decide(record(tmp_path, job="ddp", image="two", pid=os.getppid()))
    assert needed_images(store) == {"warm": "llm", "two": "ddp"}
    told = {os.getpid(): {"GCR_SOCKET": str(tmp_path / "other")}, os.getppid(): {}}
    monkeypatch.setattr(inherited, "environment_of", told.__getitem__)
    for socket, jobs in ((socket_path(), ["ddp"]), (tmp_path / "other", ["llm"])):
        journal = Journal(folder_at(socket).journal)
        inherited.take_over(journal, socket)
        assert [each.job for each in journal.records()] == jobs
    assert needed_images(store) == {"warm": "llm", "two": "ddp"}
    assert not [*former_journal().glob("*.json")]
