"""A daemon that answers from a script, over the real protocol. It proves the client's side only."""

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcr.errors import UsageError
from gcr.protocol.channel import Channel, Request
from gcr.protocol.seqpacket import listen
from gcr.protocol.wire import FrameType, HelloRecord, Role, WelcomeRecord
from gcr.version import __version__

PID = 4242
Answer = Callable[[dict[str, Any], Request], Mapping[str, Any]]

CHECKPOINT: dict[str, Any] = {
    "job": "llm",
    "simulated": False,
    "state": "suspended",
    "strategy": "handoff",
    "bytes": 3 << 30,
    "bytes_copied": 3 << 30,
    "snapshot_bytes": 0,
    "streamed": False,
    "vram_free_s": 0.71,
    "stop_s": 0.69,
    "drain_s": 0.6,
    "drain_bytes_per_s": 54.1e9,
    "control_s": 0.4,
    "link_bytes_per_s": 55.3e9,
    "durable_s": None,
    "vram_after_bytes": 0,
    "resident_bytes": 0,
    "processes": [
        {
            "pid": 4711,
            "state": "suspended",
            "strategy": "handoff",
            "device": "GPU-00000000-0000-0000-0000-000000000001",
            "bytes": 3 << 30,
            "covered_bytes": 3 << 30,
            "uncovered": {"pool": 4096},
            "handles": 24,
            "pinned_host_bytes": 0,
            "contexts": 1,
        }
    ],
}
RESTORE: dict[str, Any] = {
    "job": "llm",
    "simulated": False,
    "state": "running",
    "bytes": 3 << 30,
    "refill_s": 0.6,
    "refill_bytes_per_s": 54e9,
    "control_s": 0.3,
    "link_bytes_per_s": 55.3e9,
    "total_s": 0.7,
    "cold": False,
    "streamed": False,
    "resident_bytes": 0,
    "moved": {},
}
SWAP: dict[str, Any] = {"out": {**CHECKPOINT, "wall_s": 0.8}, "in": {**RESTORE, "job": "bb", "wall_s": 0.9}}
JOBS: list[dict[str, Any]] = [
    {
        "job": "llm",
        "pid": 4711,
        "state": "running",
        "started": "2026-01-01T00:00:00+00:00",
        "simulated": False,
        "backend": "nvidia",
        "command": ["python", "serve.py"],
        "image": None,
        "images": [],
        "only_in": None,
        "processes": [
            {
                "pid": 4711,
                "state": "running",
                "strategy": "handoff",
                "device": "GPU-00000000-0000-0000-0000-000000000001",
                "bytes": 1000,
                "covered_bytes": 500,
                "uncovered": {"pool": 500},
                "handles": 1,
                "pinned_host_bytes": 0,
                "contexts": 1,
                "label": None,
                "resident_bytes": 0,
                "shared": [{"pid": 4712, "bytes": 256, "owner": True}, {"pid": 4713, "bytes": 512, "owner": False}],
            }
        ],
        "arena": None,
        "changing": False,
        "cut": None,
    }
]

WORKER = {"device": JOBS[0]["processes"][0]["device"], "pid": 7, "bytes": 5, "pinned_bytes": 5, "cold_s": 0.5}
STATUS = {
    "pid": PID,
    "version": __version__,
    "arena_bytes": 2 << 30,
    "arena_pinned_bytes": 1 << 30,
    "jobs": 1,
    "workers": [WORKER],
}


@dataclass
class FakeDaemon:
    """Listens at `path` in threads of this process. `asked` is what clients sent."""

    path: Path
    version: str = __version__
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    _channels: list[Channel] = field(default_factory=list)

    def __enter__(self) -> "FakeDaemon":
        self._socket = listen(self.path)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._socket.close()
        for channel in self._channels:
            channel.close()
            assert channel.closed.wait(5)

    def die(self) -> None:
        """Drops every connection, as a daemon does that is killed. The next one has its place at once."""
        for channel in self._channels:
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            channel = Channel(sock, self._serve, on_close=lambda _channel: self.hung_up.set(), name="client")
            self._channels.append(channel)
            channel.start()

    def _serve(self, request: Request) -> None:
        if request.frame.type == FrameType.HELLO:
            hello = HelloRecord.unpack(request.frame.payload)
            assert hello.role == Role.CLIENT
            request.reply(WelcomeRecord(1, 0, daemon_pid=PID, daemon_epoch=1, daemon_version=self.version).pack())
            return
        assert request.frame.type == FrameType.COMMAND
        body = request.json()
        self.asked.append(body)
        if body["op"] not in self.answers:
            raise UsageError(f"no command {body['op']!r}")
        request.reply_json(self.answers[body["op"]](body, request))


def answering(document: Mapping[str, Any]) -> Answer:
    return lambda _body, _request: document


def raising(error: Exception) -> Answer:
    def answer(_body: dict[str, Any], _request: Request) -> Mapping[str, Any]:
        raise error

    return answer
