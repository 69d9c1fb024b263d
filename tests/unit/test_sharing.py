"""The facts of a process that are seen from outside: by its files in /proc alone."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcr import processes, sharing

GONE = 1 << 30


def test_what_a_process_maps_and_opens_is_read_from_proc(tmp_path: Path) -> None:
    path = tmp_path / "a name with spaces"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert str(path) in processes.mapped_files(os.getpid())
        assert processes.open_files(os.getpid(), str(tmp_path)) == [str(path)]
        (found,) = sharing.collectives(os.getpid(), "XCCL", f"{tmp_path}/a name")
    assert (found.reason, found.only_unheard) == ("nccl", True)
    assert "XCCL" in found.detail
    assert str(path) in found.detail
    assert str(path) not in processes.mapped_files(os.getpid())
    assert list(sharing.collectives(os.getpid(), "XCCL", f"{tmp_path}/a name")) == []


def test_a_network_card_s_device_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = ["/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    monkeypatch.setattr(processes, "_open_files", lambda _pid: iter(opened))
    (found,) = sharing.verbs(1)
    assert found.reason == "verbs"
    assert "uverbs0" in found.detail


@pytest.mark.parametrize(("opened", "mapped"), [(["/dev/gdrdrv"], []), ([], ["/dev/gdrdrv"]), (["/dev/gdrdrv"],) * 2])
def test_gdrcopy_s_device_is_a_reason_open_or_mapped(
    monkeypatch: pytest.MonkeyPatch, opened: list[str], mapped: list[str]
) -> None:
    monkeypatch.setattr(processes, "_open_files", lambda _pid: iter(["/dev/null", *opened]))
    monkeypatch.setattr(sharing, "mapped_files", lambda _pid: ["/usr/lib/libgdrapi.so.2", *mapped])
    (found,) = sharing.gdrcopy(1)
    assert (found.reason, found.only_unheard) == ("gdrcopy", False)
    assert "/dev/gdrdrv" in found.detail


def test_gdrcopy_s_library_alone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_open_files", lambda _pid: iter(["/dev/null"]))
    monkeypatch.setattr(sharing, "mapped_files", lambda _pid: ["/usr/lib/libgdrapi.so.2"])
    assert list(sharing.gdrcopy(1)) == []


def test_a_process_that_may_not_be_looked_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_pid: int) -> Iterator[str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(processes, "_open_files", denied)
    (found,) = sharing.refusals(1, sharing.verbs)
    assert found.reason == "not_permitted"


def test_one_that_is_gone_has_no_reasons() -> None:
    assert sharing.refusals(GONE, sharing.verbs) == []
    assert sharing.refusals(GONE, sharing.gdrcopy) == []
    assert sharing.refusals(GONE, lambda pid: sharing.collectives(pid, "XCCL", "/")) == []
