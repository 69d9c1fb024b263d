"""Folders for the files of process trees: in memory, or on a disk where that may be, and never left behind."""

import fcntl
import os
import stat
from pathlib import Path

import pytest
from memoryfolder import memory_in

from gcr import dumpfolder
from gcr.dumpfolder import dump_folder, empty
from gcr.errors import NoRoom

LARGE = 1 << 60


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return memory_in(tmp_path, monkeypatch)


def test_a_folder_is_in_memory_and_ours_alone_and_goes_with_its_block(memory: Path) -> None:
    with pytest.raises(ZeroDivisionError), dump_folder(1, secret=True) as folder:
        assert folder.parent == memory
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "file").touch()
        raise ZeroDivisionError
    assert not folder.exists()


def test_what_does_not_fit_goes_to_a_disk_unless_it_is_secret(memory: Path, tmp_path: Path) -> None:
    with dump_folder(LARGE, secret=False) as folder:
        assert folder.parent == tmp_path / "state/gcr"
    with pytest.raises(NoRoom) as short, dump_folder(LARGE, secret=True):
        pass
    assert short.value.missing
    assert not [*memory.iterdir()]


def test_what_was_left_behind_goes_and_what_is_in_use_or_young_stays(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, used, other = (memory / name for name in ("gcr-dump-left", "gcr-dump-used", "theirs"))
    for folder in (left, used, other):
        folder.mkdir()
    dumpfolder.sweep()
    assert left.exists()
    monkeypatch.setattr(dumpfolder, "_YOUNG_S", -1.0)
    lock = os.open(used, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    dumpfolder.sweep()
    os.close(lock)
    assert [each.exists() for each in (left, used, other)] == [False, True, True]


def test_a_folder_is_emptied_before_it_goes_also_where_files_come_meanwhile(tmp_path: Path) -> None:
    with dump_folder(0, False) as folder:
        (folder / "pages-1.img").write_bytes(bytes(5000))
        (folder / "of another kind").mkdir()
        empty(folder)
        assert [path.name for path in folder.iterdir()] == ["of another kind"]
        (folder / "stats-dump").write_bytes(b"late")
    assert not folder.exists()
    empty(folder)
