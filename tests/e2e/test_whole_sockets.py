"""Whole processes with TCP sockets: one that listens, a connection inside of the tree, and one with a stranger."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from filed import Filed, back, stop
from machine import VICTIMS, Machine
from stored import store_of

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
