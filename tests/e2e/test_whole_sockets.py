"""Whole processes with TCP sockets: one that listens, a connection inside of the tree, and one with a stranger."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from filed import Filed, back, stop
from machine import PATIENCE, VICTIMS, Machine, until
from stored import store_of

from gcr import nftables
from gcr.nftables import Connection
from gcr.processes import descendants

pytestmark = pytest.mark.usefixtures("criu")
SECONDS = 20.0


@contextmanager
def connected(machine: Machine, port: int) -> Iterator[Filed]:
    job = Filed(machine, program=("connected.py", str(port), str(VICTIMS / machine.where.told)))
    job.ask("mixed 6 1000 2000000")
    yield job
    job.close()


def begun(machine: Machine, line: bytes) -> socket.socket:
    """Asks the listening socket; the answer is still to come."""
    port = int((machine.folder / "listens").read_text())
    sock = socket.create_connection(("127.0.0.1", port), SECONDS)
    sock.sendall(line)
    return sock


def said(sock: socket.socket) -> bytes:
    with sock:
        return sock.recv(100)


def refusal(machine: Machine) -> dict[str, str]:
    done = machine.gcr("checkpoint", "llm", "--image", "night", "--stop", "--store", str(store_of(machine)))
    assert done.code == 3, done.body
    error: dict[str, str] = done.body["error"]
    assert (error["code"], error["state"]) == ("cannot_save", "running")
    assert "`tcp-established`" in error["hint"]
    return error


def test_connections_inside_of_the_tree_are_named_and_come_back_where_they_are_kept(machine: Machine) -> None:
    with connected(machine, 0) as job:
        before = job.ask()
        assert said(begun(machine, b"one")) == b"1 one"
        assert "ESTABLISHED" in refusal(machine)["message"]
        assert said(begun(machine, b"two")) == b"2 two"
        for count, image in enumerate(("night", "day"), 3):
            stop(machine, image, "--allow", "tcp-established")
            back(machine, image)
            assert said(begun(machine, b"on")) == b"%d on" % count
            assert job.ask() == before


@pytest.mark.parametrize("allow", ["tcp-established", "tcp-close"])
def test_a_connection_with_a_program_outside_is_kept_or_dropped_as_asked(machine: Machine, allow: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, connected(machine, ours.getsockname()[1]) as job:
        outside, _ = ours.accept()
        outside.settimeout(SECONDS)
        before, asked = job.ask(), begun(machine, b"one")
        assert outside.recv(100) == b"one"
        outside.sendall(b"uno")
        assert said(asked) == b"1 one uno"
        refusal(machine)
        stop(machine, "night", "--allow", allow)
        back(machine, "night")
        asked = begun(machine, b"two")
        if allow == "tcp-close":
            assert said(asked) == b"2 closed closed"
        else:
            assert outside.recv(100) == b"two"
            outside.sendall(b"due")
            assert said(asked) == b"2 two due"
        assert job.ask() == before
        outside.close()


def locked(outside: socket.socket) -> frozenset[Connection]:
    """Returns all connections that CRIU keeps packets from in the dump of the program that this connection is with."""
    here, there = outside.getsockname(), outside.getpeername()
    for table in nftables.tables():
        with suppress(FileNotFoundError):  # another test has removed its own
            found = nftables.connections(table)
            if (*here, *there) in found:
                return found
    return frozenset()


@pytest.mark.parametrize("then", ["", "the image fails", "the daemon dies"])
def test_a_criu_that_is_killed_takes_the_stop_back_and_leaves_no_connection_locked(machine: Machine, then: str) -> None:
    """The processes run on at once. What they do until they are ended would be lost: they are not ended."""
    held, store = machine.folder / "held", str(store_of(machine))
    with socket.create_server(("127.0.0.1", 0)) as ours, connected(machine, ours.getsockname()[1]) as job:
        outside, _ = ours.accept()
        outside.settimeout(SECONDS)
        before = job.ask()
        machine.inject(f"criu.saved hold {held}", *["image.commit fail"] * (then == "the image fails"))
        words = ("--image", "night", "--stop", "--store", store, "--allow", "tcp-established")
        going = machine.begin("checkpoint", "llm", *words)
        until(lambda: held.exists() or None, PATIENCE, "the processes are saved")
        assert len(locked(outside)) == 4  # the connection with us and the inner one, in both directions
        for pid in [pid for helper in machine.children("gcr.criu_helper") for pid in descendants(helper)]:
            os.kill(pid, signal.SIGKILL)
        if then == "the daemon dies":
            os.kill(machine.daemon(), signal.SIGKILL)
        held.unlink()
        assert going.wait(PATIENCE) != 0
        if then == "the daemon dies":
            assert machine.settled() == "suspended"
            machine.come_back()
        until(lambda: not locked(outside) or None, PATIENCE, "CRIU's table is gone")
        asked = begun(machine, b"one")
        assert outside.recv(100) == b"one"
        outside.sendall(b"uno")
        assert said(asked) == b"1 one uno"
        assert job.ask() == before
        assert machine.gcr("images", "--store", store).body["images"] == []
        outside.close()
