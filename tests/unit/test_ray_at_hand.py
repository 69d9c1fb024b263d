"""Which Ray cluster is meant where none is named: the one that this machine is part of, and none of several."""

import os
from pathlib import Path

import pytest

from gcr_ray import athand


def process(proc: Path, pid: int, *words: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes("\0".join([*words, ""]).encode())


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()  # it has just ended
    process(tmp_path, 8, "")
    process(tmp_path, 9, "/bin/sh", "-c", "raylet", "--gcs-address=1.1.1.1:1")
    return tmp_path


def test_no_raylet_is_no_cluster(proc: Path) -> None:
    assert athand.addresses(proc) == []


def test_nodes_of_one_cluster_are_one(proc: Path) -> None:
    for pid in (10, 11):
        process(proc, pid, "/venv/ray/core/src/ray/raylet/raylet", "--node-port=1", "--gcs-address=10.0.0.1:6379")
    assert athand.addresses(proc) == ["10.0.0.1:6379"]
    process(proc, 12, "raylet", "--gcs-address=10.0.0.2:6379")
    assert athand.addresses(proc) == ["10.0.0.1:6379", "10.0.0.2:6379"]


def test_the_clusters_of_other_users_count_where_this_one_has_none(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(proc, 10, "raylet", "--gcs-address=10.0.0.1:6379")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert athand.addresses(proc) == ["10.0.0.1:6379"]


def test_the_clusters_of_this_user_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(os.getuid() + 1, "10.0.0.1:1"), (os.getuid(), "10.0.0.2:1")]
    monkeypatch.setattr(athand, "_raylets", lambda proc: found)
    assert athand.addresses() == ["10.0.0.2:1"]
