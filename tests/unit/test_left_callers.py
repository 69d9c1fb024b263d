"""A caller that leaves right behind its request: the daemon reads the request first, and does not carry it out."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from reported import checkpointed

from gcr.config import Config
from gcr.daemon import clientdesk
from gcr.daemon.clientdesk import ClientDesk
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.server import Connection, Server
from gcr.job.journal import Journal
from gcr.protocol.channel import Channel
from gcr.protocol.wire import FrameType, HelloRecord, Role
from gcr.rendezvous.presence import Presence
from gcr.testing.machine import until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Server]:
    coordinator = Coordinator(Config(), Journal(tmp_path / "journal"))
    with socket.socket() as listener:
        yield Server(listener, coordinator, frozenset({os.getuid()}), Presence(tmp_path))
    coordinator.fleet.close()


def test_a_command_that_begins_after_its_caller_has_left_is_cancelled(
    daemon: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun = Event(), list[bool]()

    def run(_node: Coordinator, _request: Any, asked: Any) -> Any:
        begun.append(asked.cancelled.is_set())
        return checkpointed()

    monkeypatch.setattr(clientdesk.checkpoint, "run", run)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(daemon, theirs)
    client = Channel(ours, name="gcrd").start()
    client.call(FrameType.HELLO, HelloRecord(role=Role.CLIENT).pack(), timeout=10)
    served = ClientDesk.serve
    monkeypatch.setattr(ClientDesk, "serve", lambda desk, request: (begin.wait(10), served(desk, request)))
    client.send_json(FrameType.COMMAND, 7, {"op": "checkpoint", "target": "llm"}, (), 10)
    client.close()
    assert connection.channel.closed.wait(10)
    begin.set()
    until(lambda: begun, 10, "the command begins")
    assert begun == [True]
