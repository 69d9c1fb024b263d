"""Each end that obeys a daemon asks the kernel for the listening user, before the first byte."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from users import OTHER, root_only

from gcr.errors import UnsafeRuntime
from gcr.memory.escrow import Escrow
from gcr.protocol import trust
from gcr.protocol.seqpacket import _check_place, listen
from gcr.rendezvous import client, launch
from gcr.runtime import open_own_directory
from gcr.supervisor.link import DaemonLink


@contextmanager
def listening_as(uid: int, path: Path) -> Iterator[socket.socket]:
    """Yields a socket of another user, in a folder that all users may write; it answers nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(path))
        os.seteuid(uid)
        try:
            sock.listen()
        finally:
            os.seteuid(0)
        yield sock


def nothing_was_sent(listener: socket.socket) -> bool:
    taken, _ = listener.accept()
    with taken:
        return taken.recv(100) == b""


@root_only
@pytest.mark.parametrize("end", ["command", "supervisor", "starter"])
def test_no_end_of_ours_says_a_word_to_another_users_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "begin", lambda *_: pytest.fail("a daemon was started"))
    with listening_as(OTHER, tmp_path / "s") as listener:
        with pytest.raises(UnsafeRuntime, match=f"served by user {OTHER}"):
            if end == "command":
                client.Client.connect(autostart=False)
            elif end == "supervisor":
                DaemonLink(lambda: {"name": "llm", "token": "t"}, Escrow()).open()
            else:
                launch.await_socket(None)  # type: ignore[arg-type]
        assert nothing_was_sent(listener)


@root_only
@pytest.mark.parametrize("uid", [0, OTHER])
def test_our_own_daemon_and_the_one_that_the_setting_names_are_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setenv("GCR_DAEMON_UID", str(OTHER))
    with listening_as(uid, tmp_path / "s"):
        trust.connect_to_daemon(tmp_path / "s", 5).close()


def test_a_folder_is_checked_by_the_descriptor_that_is_used(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    with pytest.raises(UnsafeRuntime):
        open_own_directory(tmp_path / "link")
    (tmp_path / "wide").mkdir(mode=0o700)
    (tmp_path / "wide").chmod(0o755)
    with pytest.raises(UnsafeRuntime):
        listen(tmp_path / "wide" / "s")


def test_a_folder_that_is_replaced_meanwhile_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "gcr"
    folder.mkdir(mode=0o700)
    opened = open_own_directory(folder)
    try:
        folder.rename(tmp_path / "former")
        folder.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(str(folder / "s"))
            with pytest.raises(UnsafeRuntime, match="was replaced"):
                _check_place(folder / "s", opened)
    finally:
        os.close(opened)
