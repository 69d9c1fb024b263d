"""A program that has come back leaves nothing of its files, and its supervisor waits for no removal of them."""

import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gcr.dumpfolder import dump_folder
from gcr.protocol.operations.daemon import Remade
from gcr.supervisor import revival as module
from gcr.supervisor.revival import Revival

PATIENCE_S = 10.0


def test_files_go_beside_what_follows_and_no_thread_takes_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, seen = threading.Event(), list[Any]()
    rmtree = shutil.rmtree

    def removed(folder: Path, ignore_errors: bool) -> None:
        assert may_go.wait(PATIENCE_S)
        seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        rmtree(folder, ignore_errors)

    monkeypatch.setattr(module.tree, "bring_back", lambda *_: None)
    monkeypatch.setattr(module.tree, "streams_of", lambda *_: {})
    monkeypatch.setattr(module.tree, "await_ids", lambda *_: None)
    with dump_folder(1, secret=False) as folder:
        monkeypatch.setattr(module.shutil, "rmtree", removed)  # it is the one that a new folder's maker uses, too
        (folder / "pages-1.img").write_bytes(bytes(4096))
        stopped: Any = SimpleNamespace(root=7)
        assert Revival(Path("criu"), folder, stopped, *[None] * 2).bring_back(None, lambda _: None).pid == 7  # type: ignore[arg-type]
        assert not folder.exists(), "the maker of the folder finds nothing to remove"
        assert [each.name for each in folder.parent.glob(f"{folder.name}*")] == [f"{folder.name}-over"]
        (thread,) = (each for each in threading.enumerate() if each.name == "gcr-tidy")
        may_go.set()
        thread.join(PATIENCE_S)
    assert {signal.SIGTERM, signal.SIGCHLD} <= seen[0]
    assert not [*folder.parent.glob(f"{folder.name}*")]


@pytest.mark.parametrize("plugins", [(), (Path("amdgpu.so"),)])
def test_the_daemon_looks_for_what_a_plugin_brings_back_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugins: tuple[Path, ...]
) -> None:
    told, stopped = list[Any](), SimpleNamespace(root=7)
    monkeypatch.setattr(module.tree, "bring_back", lambda *given: given[-3]())  # `verify`
    monkeypatch.setattr(module.tree, "streams_of", lambda *_: {})
    back: Any = Revival(Path("criu"), tmp_path / "files", stopped, *[None] * 2, plugins=plugins)  # type: ignore[arg-type]
    back.bring_back(None, told.append)
    assert told == [Remade()] * len(plugins)
