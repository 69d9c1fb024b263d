"""`gcr daemon`, and daemons that are refused: of another version, in an open directory, of a stranger."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gcr.runtime import log_dir, runtime_dir

from .conftest import Gcr
from .fake_daemon import PID, STATUS, WORKER, FakeDaemon, answering


def test_daemon_status_and_stop_without_one(gcr: Gcr) -> None:
    assert gcr("daemon", "status").out == "no daemon runs\n"
    assert gcr("daemon", "status", "--json").json["running"] is False
    assert gcr("daemon", "stop", "--json").json == {
        "schema": 1,
        "command": "daemon stop",
        "ok": True,
        "stopped": False,
        "pid": None,
    }


def test_daemon_status(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["status"] = answering(STATUS)
    assert gcr("daemon", "status", "--json").json["workers"] == [WORKER]
    assert "1.0 GiB of 2.0 GiB registered" in gcr("daemon", "status").out


def test_daemon_stop_waits_until_it_is_gone(gcr: Gcr, daemon: FakeDaemon) -> None:
    def stop(_body: object, request: object) -> dict[str, object]:
        request.reply_json({})  # type: ignore[attr-defined]
        time.sleep(0.3)
        request.channel.close()  # type: ignore[attr-defined]
        return {}

    daemon.answers["stop"] = stop
    began = time.monotonic()
    assert gcr("daemon", "stop", "--force", "--json").json["stopped"] is True
    assert time.monotonic() - began >= 0.3
    assert daemon.asked[0]["force"] is True


def test_daemon_start_when_it_runs(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert gcr("daemon", "start", "--json").json["started"] is False
    assert f"pid {PID}" in gcr("daemon", "start").out


def test_daemon_logs(gcr: Gcr) -> None:
    (log_dir() / "gcrd.log").write_text("one\ntwo\nthree\n")
    assert gcr("daemon", "logs", "-n", "2", "--json").json["lines"] == ["two", "three"]
    assert gcr("daemon", "logs").out.splitlines()[1:] == ["one", "two", "three"]


def test_a_daemon_of_another_version_is_refused_but_can_be_stopped(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.version = "0.0.1"
    ran = gcr("checkpoint", "llm", "--json")  # this one does not know how to hand over
    assert (ran.code, ran.json["error"]["code"]) == (3, "wrong_version")
    assert "gcr daemon stop --force" in ran.json["error"]["hint"]
    assert [asked["op"] for asked in daemon.asked] == ["hand_over"]
    daemon.asked.clear()
    daemon.answers["stop"] = lambda _body, request: request.channel.close() or {}
    assert gcr("daemon", "stop").code in (0, 4)
    assert daemon.asked[0]["op"] == "stop"


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_runtime_directory_that_others_can_enter_is_refused(gcr: Gcr, mode: int) -> None:
    folder = runtime_dir()
    folder.chmod(mode)
    ran = gcr("checkpoint", "llm", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "unsafe_runtime")
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_the_socket_of_a_stranger_is_refused(gcr: Gcr, home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a socket of another user")
    place = home / "open" / "gcrd.sock"
    place.parent.mkdir()
    # The kernel notes the caller of listen(), and names it to connecting clients.
    lines = (
        "import os, socket, sys, time",
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "s.bind(sys.argv[1])",
        "os.setuid(65534)",
        "s.listen()",
        "print(flush=True)",
        "time.sleep(30)",
    )
    with subprocess.Popen([sys.executable, "-c", "\n".join(lines), str(place)], stdout=subprocess.PIPE) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            ran = gcr("checkpoint", "llm", "--json", GCR_SOCKET=str(place))
        finally:
            stranger.kill()
    assert (ran.code, ran.json["error"]["code"]) == (3, "unsafe_runtime")
