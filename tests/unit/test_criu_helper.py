"""A CRIU helper as a process, with a program in place of CRIU that notes how it was started."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))

from dumps import CRIU, skip_without_criu

from gcr.criu import saving
from gcr.criu.preflight.obstacle import Options
from gcr.criu.saving import Wishes
from gcr.criu_helper import service
from gcr.errors import CriuUnusable
from gcr.imageerrors import NotRestored
from gcr.peers.criu import CriuPeer
from gcr.processes import descendants, parent_pid
from gcr.protocol.channel import Channel
from gcr.protocol.operations.criu import Dump, Look, Prepare
from gcr.testing.machine import until

NOTING = """#!/bin/sh
grep SigIgn /proc/$$/status | cut -f2 > {folder}/ignored
cat /proc/$$/oom_score_adj > {folder}/score
"""
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
LOOK = Look(os.getpid(), (), "nvidia", True, (), "nowhere", ())
OURS = Path("/proc/self/oom_score_adj")


def test_no_end_of_a_service_or_of_memory_ends_criu_inside_of_a_program(tmp_path: Path) -> None:
    before = int(OURS.read_text())
    noting = tmp_path / "criu"
    noting.write_text(NOTING.format(folder=tmp_path))
    noting.chmod(0o700)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "gcr.criu_helper", str(theirs.fileno())]
    OURS.write_text(str(max(before, 500)))  # as a service that may be ended early
    try:
        helper = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env={**os.environ, "GCR_CRIU": str(noting)}, stderr=subprocess.DEVNULL
        )
    finally:
        OURS.write_text(str(before))
    theirs.close()
    channel = Channel(ours, name="helper").start()
    with pytest.raises(CriuUnusable, match="ended before it answered"):
        CriuPeer(channel, helper.pid).look(LOOK)
    ignored = int((tmp_path / "ignored").read_text(), 16)
    assert all(ignored >> (number - 1) & 1 for number in ENDING)
    assert int((tmp_path / "score").read_text()) <= 0
    for number in ENDING:
        helper.send_signal(number)
    with pytest.raises(CriuUnusable):
        CriuPeer(channel, helper.pid).look(LOOK)
    channel.close()
    assert helper.wait(20) == 0


@pytest.mark.parametrize("looks", [1, 3])
def test_something_in_the_way_that_passes_by_itself_is_in_no_way(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket has a connection to accept, say, and accepts it."""
    found = iter([*[[cast("Any", "in the way")]] * (looks - 1), []])
    monkeypatch.setattr(service.tree, "looked_at", lambda *_: ([7], next(found)))
    monkeypatch.setattr(service, "LOOK_S", 0.0)
    assert service._looked_at(LOOK, Options()) == ([7], [])


def test_something_that_stays_in_the_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.tree, "looked_at", lambda *_: ([7], ["in the way"]))
    monkeypatch.setattr(service, "PASSES_S", 0.01)
    assert service._looked_at(LOOK, Options()) == ([7], ["in the way"])


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> "Iterator[subprocess.Popen[bytes]]":
    skip_without_criu()
    monkeypatch.setenv("GCR_CRIU", str(CRIU))
    null = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "60"], stdin=null, stdout=null, stderr=null, start_new_session=True) as process:
        yield process
        process.kill()


def tracer(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))


def crius() -> set[int]:
    """Returns our children that are CRIU; it has children of its own while it tries what the kernel can do."""
    ours = [pid for pid in descendants(os.getpid()) if parent_pid(pid) == os.getpid()]
    return {pid for pid in ours if b"swrk" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_criu_waits_for_the_dump_that_it_was_started_for(
    program: "subprocess.Popen[bytes]", tmp_path: Path, *, elsewhere: bool
) -> None:
    """The program runs on meanwhile. For another dump CRIU is started anew, and the first one has touched nothing."""
    asked, other = tmp_path / "asked", tmp_path / "other"
    for folder in (asked, other):
        folder.mkdir()
    made = service.CriuService(replace(LOOK, root=program.pid))
    made._prepare(Prepare(str(asked), 30.0))
    made._prepare(Prepare(str(asked), 30.0))
    until(lambda: (asked / "dump.log").exists(), 20, "CRIU has been asked")
    (waiting,) = crius()
    assert not tracer(program.pid)
    made._dump(Dump(str(other if elsewhere else asked), 30.0))
    holds, lives = tracer(program.pid), program.poll() is None
    made._begun().end()
    assert lives
    assert (holds == waiting) != elsewhere
    assert program.wait(20) == -signal.SIGKILL
    assert (asked / "tree.json").exists() != elsewhere
    assert not crius()


def test_a_process_of_ours_that_has_the_pid_is_not_ended(
    program: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU has begun by then, and the caller is asked before it makes a process."""
    monkeypatch.setattr(saving, "_REAPED_S", 0.1)

    class Refused(Exception):
        pass

    def refuse(_ended: int) -> None:
        raise Refused

    with pytest.raises(Refused):
        saving.dump(CRIU, program.pid, tmp_path, Wishes(), 30.0, refuse)
    asked = list[str]()
    with pytest.raises(NotRestored, match=f"pid {program.pid} is in use"):
        saving.restore(CRIU, [program.pid], tmp_path, Wishes(), 30.0, pytest.fail, ready=lambda: asked.append("ready"))
    assert asked == ["ready"]
    assert program.poll() is None
