"""Connections that CRIU has left locked. What CRIU itself leaves is in tests/e2e/test_whole_sockets.py."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gcr import connections, nftables
from gcr.daemon import locked

OWN = os.getpid()
NAMED = """#!/bin/sh
echo "${0##*/} $*" >> "${0%/*}/said"
exit 1
"""


@contextmanager
def connection(host: str = "127.0.0.1") -> Iterator[tuple[int, int]]:
    """Yields the ports of a connection of this process with itself, of the caller and of the other end."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listens, socket.create_connection(listens.getsockname()[:2]):
        other, address = listens.accept()
        with other:
            yield address[1], listens.getsockname()[1]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a file that has the calls of iptables."""
    for name in ("iptables", "ip6tables"):
        (tmp_path / name).write_text(NAMED)
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "said"


@pytest.mark.parametrize("host, program", [("127.0.0.1", "iptables"), ("::1", "ip6tables")])
def test_rules_of_each_connection_are_removed_as_criu_makes_them(programs: Path, host: str, program: str) -> None:
    with connection(host) as (near, far):
        assert connections.let_go([OWN], ()) == 0
    begins, ends = f"{program} -w -t filter -D", "-j DROP"
    criu = "--protocol tcp -m mark ! --mark 0xC114"
    for here, there in ((near, far), (far, near)):
        to_it = f"{criu} --source {host} --sport {there} --destination {host} --dport {here}"
        of_it = f"{criu} --source {host} --sport {here} --destination {host} --dport {there}"
        said = programs.read_text().splitlines()
        assert {f"{begins} INPUT {to_it} {ends}", f"{begins} OUTPUT {of_it} {ends}"} <= {*said}


def test_a_table_is_removed_that_is_new_and_has_one_of_the_connections(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = list[str]()
    monkeypatch.setattr(nftables, "tables", lambda: frozenset({"CRIU-before", "CRIU-now", "CRIU-of-others"}))
    monkeypatch.setattr(nftables, "remove", removed.append)
    with connection() as (near, far):
        ours, other = ("127.0.0.1", far, "127.0.0.1", near), ("10.0.0.1", 1, "10.0.0.2", 2)
        within = {"CRIU-before": {ours}, "CRIU-now": {ours, other}, "CRIU-of-others": {other}}
        monkeypatch.setattr(nftables, "connections", lambda table: frozenset(within[table]))
        connections.let_go([OWN], ["CRIU-before"])
        assert removed == ["CRIU-now"]
        with pytest.raises(OSError, match=r"one of these tables .*: CRIU-before, CRIU-now"):
            connections.let_go([OWN], [])
    assert removed == ["CRIU-now"]


def test_an_address_of_ipv4_within_ipv6_is_one_of_ipv4() -> None:
    assert nftables.plain("::ffff:127.0.0.1") == "127.0.0.1" == nftables.plain(bytes([127, 0, 0, 1]))
    assert nftables.plain("fe80::1%eth0") == "fe80::1"


@pytest.fixture
def let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], tuple[str, ...]]]:
    """Returns the calls of `connections.let_go`."""
    calls = list[tuple[list[int], tuple[str, ...]]]()
    monkeypatch.setattr(connections, "let_go", lambda pids, former: calls.append((pids, former)))
    monkeypatch.setattr(connections, "tables", lambda: frozenset({"CRIU-1"}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "gcrd.sock"))
    monkeypatch.setattr(locked, "UNTRACED_S", 0.02)
    return calls


def notes(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("locked/*")]


def test_a_note_goes_once_the_connections_of_the_living_were_let_go(
    tmp_path: Path, let_go: list[tuple[list[int], tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    locked.settle("a token")
    locked.note("../a token", [OWN, 4_194_305])
    assert notes(tmp_path) == ["job----a-token"]
    locked.settle_all()  # for gcr recover: CRIU has yet to begin
    assert (let_go, notes(tmp_path)) == ([], ["job----a-token"])
    monkeypatch.setattr(locked, "_under_way", set())  # the daemon has died
    monkeypatch.setattr(locked, "tracer", lambda _pid: 1)
    locked.settle_all()  # CRIU is at work
    assert (let_go, notes(tmp_path)) == ([], ["job----a-token"])
    monkeypatch.setattr(locked, "tracer", lambda _pid: 0)
    locked.settle_all()
    assert (let_go, notes(tmp_path)) == ([([OWN], ("CRIU-1",))], [])


def test_a_note_of_processes_that_have_ended_goes_and_one_that_failed_stays(
    tmp_path: Path, let_go: list[tuple[list[int], tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    locked.note("gone", [4_194_305])
    locked.settle("gone")
    assert (let_go, notes(tmp_path)) == ([], [])
    locked.note("here", [OWN])
    with monkeypatch.context() as patched:
        patched.setattr(connections, "let_go", lambda *_: (tmp_path / "nowhere").stat())
        locked.settle("here")
    assert notes(tmp_path) == ["job-here"]
    next((tmp_path / "state").rglob("job-here")).write_text("no note")
    locked.settle_all()
    assert notes(tmp_path) == ["job-here"]
