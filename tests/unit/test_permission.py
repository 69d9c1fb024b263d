"""The threat model of docs/security.md, line by line: permissions of callers, and what peers say."""

import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from users import OTHER, root_only

from gcr.api.requests import CheckpointRequest
from gcr.config import Config
from gcr.daemon import fleet, permission
from gcr.daemon.__main__ import OneLine
from gcr.daemon.commands import checkpoint
from gcr.daemon.commands.asked import Asked
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.jobs import Job
from gcr.daemon.permission import Acting, Caller, acting_for
from gcr.daemon.server import Connection, Server
from gcr.daemon.worlds import simulated_world
from gcr.engine.node import World
from gcr.errors import GcrError, NotOurs, UsageError, WrongDevice, WrongState
from gcr.job.decisions import DecisionRecord, ProcessDecision, text_of
from gcr.job.journal import Journal
from gcr.job.states import State
from gcr.processes import start_time
from gcr.protocol.channel import Channel
from gcr.protocol.frames import AgentError
from gcr.protocol.wire import FrameType, HelloRecord, Role
from gcr.rendezvous.presence import Presence


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Sockets that are made meanwhile are this user's, as the kernel says to the other end."""
    before = os.geteuid()
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yields a daemon that admits one other user; no thread serves its socket."""
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    with socket.socket() as listener:
        yield Server(listener, coordinator, frozenset({os.getuid(), 0, OTHER}), Presence(tmp_path))
    coordinator.fleet.close()


@pytest.fixture
def peer(server: Server) -> Iterator[Callable[..., Channel]]:
    """Connects as a user, in a role."""
    made: list[Channel] = []

    def connect(uid: int, role: Role = Role.CLIENT, **hello: Any) -> Channel:
        with acting_as(uid):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        Connection(server, theirs)
        made.append(Channel(ours, lambda _request: None, name="gcrd").start())
        made[-1].call(FrameType.HELLO, HelloRecord(role=role, **hello).pack(), timeout=10)
        return made[-1]

    yield connect
    for channel in made:
        channel.close()


def command(channel: Channel, op: str, **body: object) -> dict[str, Any]:
    return channel.call_json(op, body, timeout=20, type=FrameType.COMMAND)[0]


def register(channel: Channel, **body: object) -> dict[str, Any]:
    about = {"name": "llm", "token": "secret", "argv": ["python"], "pid": None, **body}
    return channel.call_json("register", about, timeout=10)[0]


@contextmanager
def sleeping(uid: int | None = None, **environment: str) -> Iterator[int]:
    process = subprocess.Popen(["/bin/sleep", "60"], cwd="/", user=uid, env={**os.environ, **environment})
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait(10)


def test_a_simulated_world_is_for_the_daemons_own_user(peer: Callable[..., Channel]) -> None:
    with pytest.raises(NotOurs, match="simulated devices are for jobs of the daemon's own user"):
        simulated_world("nvidia", {}, os.getuid() + 1)
    if os.getuid() == 0:
        with pytest.raises(NotOurs):
            register(peer(OTHER, Role.SUPERVISOR), simulate="nvidia", sim_environment={"LD_LIBRARY_PATH": "/evil"})


@root_only
def test_another_users_process_in_a_simulated_world_is_refused_and_nothing_started(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "start_child", lambda *_: pytest.fail("a child was started"))
    with sleeping(OTHER, GCR_SIMULATE="nvidia", LD_LIBRARY_PATH="/evil") as pid, pytest.raises(NotOurs):
        checkpoint.run(
            server.coordinator, CheckpointRequest(target=pid), Asked(lambda _report: None, threading.Event())
        )


# ---- permissions of callers -----------------------------------------------------------------------------------------


@root_only
def test_another_user_neither_sees_nor_moves_our_jobs(server: Server, peer: Callable[..., Channel]) -> None:
    server.coordinator.jobs.add(Job("ours", "t", World("nvidia")))
    server.coordinator.jobs.add(Job("theirs", "u", World("nvidia"), owner=OTHER))
    theirs, root = peer(OTHER), peer(0)
    assert [job["job"] for job in command(theirs, "ps")["jobs"]] == ["theirs"]
    assert [job["job"] for job in command(root, "ps")["jobs"]] == ["ours", "theirs"]
    for op in ("checkpoint", "restore"):
        with pytest.raises(NotOurs):
            command(theirs, op, target="ours")
    with pytest.raises(NotOurs):
        command(theirs, "swap", **{"out": "theirs", "in": "ours"})
    for op in ("checkpoint", "restore"):
        for channel, target in ((theirs, "theirs"), (root, "theirs"), (root, "ours")):
            with pytest.raises(GcrError) as caught:  # it has no process
                command(channel, op, target=target)
            assert caught.value.code in ("not_a_gpu_process", "wrong_state")


@root_only
@pytest.mark.parametrize("op", ["stop", "recover", "hand_over", "migrate"])
def test_what_concerns_every_job_is_for_the_daemons_user(server: Server, peer: Callable[..., Channel], op: str) -> None:
    with pytest.raises(NotOurs):
        command(peer(OTHER), op, force=True)
    assert not server.stopping.is_set()


@root_only
@pytest.mark.parametrize("uid", [0, OTHER + 1])
def test_another_user_checkpoints_no_process_but_its_own(peer: Callable[..., Channel], uid: int) -> None:
    with sleeping(uid) as pid, pytest.raises(NotOurs):
        command(peer(OTHER), "checkpoint", target=pid)


@root_only
def test_another_user_registers_jobs_of_its_own(server: Server, peer: Callable[..., Channel]) -> None:
    supervisor = peer(OTHER, Role.SUPERVISOR)
    with sleeping() as ours, sleeping(OTHER) as theirs:
        assert register(supervisor, pid=ours)["name"] == "llm"
        job = server.coordinator.jobs.by_name["llm"]
        assert (job.owner, job.program.pid) == (OTHER, None)  # a pid of ours is none of its
        supervisor.call_json("started", {"pid": ours}, timeout=10)
        assert job.program.pid is None
        supervisor.call_json("started", {"pid": theirs}, timeout=10)
        assert job.program.pid == theirs
    with pytest.raises(UsageError, match="registers one job"):
        register(supervisor, name="second", token="other")


@root_only
def test_another_user_takes_no_job_of_ours_over(server: Server, peer: Callable[..., Channel]) -> None:
    """A new daemon knows such a job from the journal: it has no token yet."""
    job = Job("llm", "", World("nvidia"))
    server.coordinator.jobs.add(job)
    with sleeping(OTHER) as pid, pytest.raises(NotOurs):
        register(peer(OTHER, Role.SUPERVISOR), pid=pid)
    assert job.supervision.supervisor is None and not job.token
    agent = SimpleNamespace(
        channel=SimpleNamespace(peer=SimpleNamespace(uid=OTHER)),
        hello=SimpleNamespace(token="", job="llm"),
        identity=SimpleNamespace(pid=os.getpid()),
    )
    joined = server.arrivals._job_of(cast("Any", agent))
    assert joined is not job and joined.owner == OTHER


@root_only
def test_a_user_who_is_not_admitted_is_told_so_and_not_served(peer: Callable[..., Channel]) -> None:
    with pytest.raises(AgentError, match=f"user {OTHER + 1} may not use this daemon"):
        peer(OTHER + 1)


# ---- helpers that act for another user ----------------------------------------------------------------------------


@root_only
def test_an_image_helper_acts_as_the_user_who_asked(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("/dev/shm") / f"gcr-test-helper-{os.getpid()}"
    folder.mkdir()
    try:
        script, said = folder / "helper", folder / "said"
        script.write_text(f"#!/bin/sh\n(id -u; id -g; id -G; env) > {said}.new; mv {said}.new {said}; exec sleep 60\n")
        script.chmod(0o755)
        folder.chmod(0o777)
        monkeypatch.setattr(sys, "executable", str(script))
        monkeypatch.setenv("GCR_STORE", "/home/admin/store")
        monkeypatch.setenv("HOME", "/home/admin")
        helper = fleet.Fleet().image_helper(acting_for(Caller(OTHER, OTHER + 1, (OTHER + 2,))))
        try:
            while not said.exists():
                assert not helper.channel.closed.wait(0.02)
        finally:
            helper.kill()
            helper.channel.close()
        uid, gid, groups, *environment = said.read_text().splitlines()
        assert (uid, gid, set(groups.split())) == (str(OTHER), str(OTHER + 1), {str(OTHER + 1), str(OTHER + 2)})
        assert not [line for line in environment if "/home/admin" in line and line.startswith(("GCR_STORE", "HOME"))]
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_a_daemon_that_cannot_act_as_another_user_makes_no_image_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission.os, "geteuid", lambda: 1000)
    with pytest.raises(NotOurs):
        acting_for(Caller(OTHER, OTHER))
    assert acting_for(Caller()) == Acting()
    assert acting_for(Caller(0, 0)) == Acting()  # root asks a user's daemon: as that user


# ---- names, and what is written to the log ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "1", "Upper", ".x", "a\nb", "a" * 64, "-x"])
def test_a_job_whose_name_is_none_is_refused_at_the_door(peer: Callable[..., Channel], name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a job"):
        register(peer(os.getuid(), Role.SUPERVISOR), name=name)


def record_text(job: str, *devices: str, pid: int = 7) -> str:
    known = ProcessDecision(pid, start_time(pid) or 0 if pid == os.getpid() else 0, dict.fromkeys(devices, 1), {})
    return text_of(DecisionRecord(job, 1, "checkpoint", 1.0, (known,), "nvidia", simulated=False)).decode()


WRONG: list[tuple[str, dict[str, object]]] = [
    *(("register", {"token": token}) for token in ("", 7, "x" * 65, None)),
    *(("register", {"argv": argv}) for argv in ([], "sh", [1], None)),
    *(("register", {"name": name}) for name in (7, ["x"])),
    *(("register", {"pid": pid}) for pid in ("7", True, 1.5)),
    ("register", {"backend": "a b"}),
    ("register", {"simulate": "nvidia"}),
    ("register", {"simulate": "nvidia", "sim_environment": {"GCR_SIM_DEVICES": 1}}),
    ("started", {}),
    ("started", {"pid": "7"}),
    ("revived", {}),
    ("revived", {"pid": 7, "decision": "nonsense"}),
    ("revived", {"pid": 7, "decision": record_text("other")}),
    ("finished", {"code": None}),
    ("finished", {}),
    ("vacate", {"ids": ["7"]}),
    ("checkpoint", {"target": "llm"}),
]


@pytest.mark.parametrize(("op", "wrong"), WRONG, ids=str)
def test_a_supervisor_that_says_what_makes_no_sense_is_refused_and_no_job_is_harmed(
    server: Server, peer: Callable[..., Channel], op: str, wrong: dict[str, object]
) -> None:
    good, bad = peer(os.getuid(), Role.SUPERVISOR), peer(os.getuid(), Role.SUPERVISOR)
    register(good, name="good", token="first")
    if op == "register":
        with pytest.raises(UsageError):
            register(bad, **{"name": "bad", "token": "second", **wrong})
        assert [*server.coordinator.jobs.by_name] == ["good"]
    assert register(bad, name="bad", token="second") == {"name": "bad", "ok": True, "contained": False}
    if op != "register":
        with pytest.raises(UsageError):
            bad.call_json(op, wrong, timeout=10)
    for channel, name in ((good, "good"), (bad, "bad")):
        channel.call_json("started", {"pid": os.getpid()}, timeout=10)
        assert server.coordinator.jobs.by_name[name].program.pid == os.getpid()
        answer, _ = channel.call_json("finished", {"code": 0}, timeout=10)
        assert answer == {"ok": True, "report": None, "was": "running", "image": None, "store": None}


@pytest.mark.parametrize("wrong", [None, "", "nonsense", 5, ["ps"], {}])
def test_a_client_that_names_no_command_is_refused_and_served_further(
    peer: Callable[..., Channel], wrong: object
) -> None:
    client = peer(os.getuid())
    with pytest.raises(UsageError, match="no command"):
        client.call_json("ps", {"op": wrong}, timeout=10, type=FrameType.COMMAND)
    assert command(client, "ps", target="", more=1) == {"ok": True, "jobs": [], "awaited": []}


def test_a_job_that_came_back_is_suspended_and_of_the_daemons_own_user(
    server: Server, peer: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = peer(os.getuid(), Role.SUPERVISOR)
    register(channel, name="llm")
    job, told = (
        server.coordinator.jobs.by_name["llm"],
        {"pid": os.getpid(), "decision": record_text("llm", pid=os.getpid())},
    )
    job.owner += 1
    with pytest.raises(NotOurs):
        channel.call_json("revived", told, timeout=10)
    job.owner -= 1
    monkeypatch.setattr(server.coordinator, "control", lambda _world: SimpleNamespace(devices=tuple))
    with pytest.raises(WrongDevice, match="was on device GPU-1"):
        channel.call_json("revived", {**told, "decision": record_text("llm", "GPU-1", pid=os.getpid())}, timeout=10)
    assert server.coordinator.journal.record("llm") is None
    channel.call_json("revived", told, timeout=10)
    assert (job.state, job.program.pid) == (State.SUSPENDED, os.getpid())
    assert server.coordinator.journal.record("llm") == job.decision
    with pytest.raises(WrongState, match="is here already"):
        channel.call_json("revived", told, timeout=10)


def test_processes_of_an_attempt_that_have_ended_do_not_keep_the_next_one_out(
    server: Server, peer: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = peer(os.getuid(), Role.SUPERVISOR)
    register(channel, name="llm")
    job = server.coordinator.jobs.by_name["llm"]
    monkeypatch.setattr(server.coordinator, "control", lambda _world: SimpleNamespace(devices=tuple))
    with subprocess.Popen(["sleep", "60"]) as first, job.changing("restore"):
        told = {"pid": first.pid, "decision": record_text("llm", pid=first.pid)}
        channel.call_json("revived", told, timeout=10)
        first.kill()
        first.wait()
        told = {"pid": os.getpid(), "decision": record_text("llm", pid=os.getpid())}
        channel.call_json("revived", told, timeout=10)
    assert [*job.processes] == [os.getpid()]
    assert server.coordinator.journal.record("llm") == job.decision


@pytest.mark.parametrize(("op", "body"), [("started", {"pid": 1}), ("finished", {"code": 0})])
def test_a_supervisor_registers_its_job_before_it_tells_of_it(
    server: Server, peer: Callable[..., Channel], op: str, body: dict[str, object]
) -> None:
    """A token that no supervisor registered is that of no job, whatever a job has for one."""
    job = Job("other", "None", World("nvidia"))
    server.coordinator.jobs.add(job)
    with pytest.raises(UsageError, match="registers its job first"):
        peer(os.getuid(), Role.SUPERVISOR).call_json(op, body, timeout=10)
    assert (job.program.pid, job.ends.finished) == (None, False)


def test_an_agent_names_no_file(server: Server) -> None:
    hello = SimpleNamespace(job="../x", token="")
    assert server.arrivals._name_for(cast("Any", SimpleNamespace(hello=hello))) == "x-1"


def test_a_message_of_a_peer_is_one_line_of_the_log() -> None:
    record = logging.LogRecord("gcr", logging.INFO, "", 0, "job %s", ("x\n2026 ERROR \x1b[2J",), None)
    assert OneLine("%(message)s").format(record) == r"job x\n2026 ERROR \x1b[2J"


@pytest.mark.parametrize("where", ["a file in its place", "read-only"])
def test_a_log_folder_that_cannot_be_written_stops_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    state = tmp_path / "state"
    if where == "read-only":
        (state / "gcr" / "log").mkdir(parents=True)
        (state / "gcr" / "log").chmod(stat.S_IRUSR)
    else:
        state.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    process, channel = fleet.start_child("gcr.control_helper", ["nvidia"], dict(os.environ))
    try:
        assert channel.call_json("ready", timeout=30)[0]["ok"]
    finally:
        channel.close()
        process.wait(10)
