"""A new daemon knows which processes have to come back, and a command without a daemon that there are some."""

import os
import shutil
import subprocess

import pytest

from gcr.processes import ProcessIdentity, identify
from gcr.rendezvous.presence import Presence, living
from gcr.rendezvous.traces import left_behind


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_successor_awaits_those_that_live_and_have_not_come(tmp_path, child):
    me, other = identify(os.getpid()), identify(child.pid)
    first = Presence(tmp_path)
    for each in (me, other, ProcessIdentity(child.pid, 1)):  # the last was another process with this pid
        first.come(each)
    second = Presence(tmp_path)
    assert {*second.awaited()} == {me, other}
    second.come(me)
    assert [*second.awaited()] == [other]
    second.mend()
    assert {*living(tmp_path)} == {me, other} and len([*(tmp_path / "present").iterdir()]) == 2
    child.kill()
    child.wait()
    assert not second.awaited()
    second.gone(me)
    assert not living(tmp_path)


def test_a_process_that_called_exec_is_one_that_has_come_anew(tmp_path):
    me = identify(os.getpid())
    before = ProcessIdentity(me.pid, me.start_time, me.stack + 16)
    presence = Presence(tmp_path)
    presence.come(before)
    presence.come(me)
    presence.gone(before)
    assert [*living(tmp_path)] == [me]


def test_what_another_removes_is_written_again(tmp_path):
    presence = Presence(tmp_path)
    presence.come(identify(os.getpid()))
    shutil.rmtree(tmp_path / "present")
    presence.mend()
    assert living(tmp_path)


def test_a_disk_that_is_full_is_no_obstacle(tmp_path, monkeypatch, caplog):
    def fail(*_args, **_more):
        raise OSError(28, "No space left on device")

    presence = Presence(tmp_path)
    monkeypatch.setattr(os, "open", fail)
    presence.come(identify(os.getpid()))
    assert "No space" in caplog.text


def test_a_command_sees_what_a_daemon_left(tmp_path, monkeypatch):
    from gcr.rendezvous.folder import DaemonFolder

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    socket = tmp_path / "run" / "s"
    assert not left_behind(socket)
    presence = Presence(DaemonFolder.of(socket).path)
    presence.come(identify(os.getpid()))
    assert left_behind(socket) and not left_behind(tmp_path / "run" / "other")
    presence.gone(identify(os.getpid()))
    assert not left_behind(socket)
