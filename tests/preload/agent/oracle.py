"""A daemon for tests: speaks the wire protocol from its description alone and keeps what it is handed.

It and the modules that it imports are written with `struct` against the text of wire.h. They share no code with what
they test.
"""

import array
import fcntl
import mmap
import os
import queue
import socket
import threading
from pathlib import Path

from agent import Agent
from packets import (
    HELLO,
    KINDS,
    OCCUPIED,
    OCCUPIED_DEVICES,
    REPLY,
    VERSION,
    WELCOME,
    Hello,
    frame,
    receive,
)
from patience import PATIENCE


class Page:
    """The daemon's page of occupied devices; `fd` goes with every welcome."""

    def __init__(self) -> None:
        size = OCCUPIED.size * OCCUPIED_DEVICES
        self.fd = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._bytes = mmap.mmap(self.fd, size)

    def say(self, row: int, uuid: bytes, occupied: int) -> None:
        self._bytes[row * OCCUPIED.size : (row + 1) * OCCUPIED.size] = OCCUPIED.pack(uuid, occupied, 0)

    def close(self) -> None:
        self._bytes.close()
        os.close(self.fd)


class Daemon:
    """Listens; every agent that says hello is welcomed at once, by a thread of its own, and queued.

    A program's first call waits for its welcome. `with_page`, `flags`: of the welcomes from now on.
    """

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.path = path
        self.page = Page()
        self.with_page = True
        self.flags = flags
        self.silent = False  # no agent is welcomed
        self._unanswered: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self.agents: list[Agent] = []
        self._welcomed: queue.Queue[Agent] = queue.Queue()
        self._thread = threading.Thread(target=self._welcome_all, daemon=True)
        self._thread.start()

    def accept(self, patience: float = PATIENCE) -> Agent:
        """The next agent that was welcomed."""
        return self._welcomed.get(timeout=patience)

    def _welcome_all(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.silent:
                self._unanswered.append(link)
                continue
            try:
                self._welcomed.put(self._welcome(link))
            except (EOFError, OSError):
                link.close()  # its process has ended

    def _welcome(self, link: socket.socket) -> Agent:
        page = [self.page.fd] if self.with_page else []
        link.settimeout(PATIENCE)
        kind, request, payload, _ = receive(link)
        assert kind == KINDS["hello"]
        role, oldest, newest, vendor, phase, flags, pid, transaction, generation, job, token, _ = HELLO.unpack(payload)
        assert oldest <= VERSION <= newest
        welcome = frame(REPLY | kind, request, WELCOME.pack(VERSION, self.flags, os.getpid(), 1, b"oracle"), len(page))
        link.sendmsg([welcome], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", page))])
        link.settimeout(None)
        agent = Agent(
            link,
            Hello(role, vendor, phase, flags, pid, transaction, generation, job.rstrip(b"\0"), token.rstrip(b"\0")),
        )
        agent.start()
        self.agents.append(agent)
        return agent

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()
        for link in self._unanswered:
            link.close()
        for agent in self.agents:
            agent.close()
        self.page.close()
