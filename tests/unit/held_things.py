"""Things that a process can hold, what preflight and CRIU say of each, and processes that hold them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import Struct

from gcr.criu.preflight.check import tree
from gcr.criu.preflight.obstacle import Kind, Options

LEADER = ("sh", "-c", 'set -m; "$@" & exec >&-; wait', "sh")  # leads the session of the program that it starts
HOLDING = Path(__file__).parent / "preflight/holding.py"


class Thing(Struct, frozen=True):
    """A thing by the name of its function in holding.py.

    `kind`: the obstacle that it is, None for none · `named`: how the obstacle names it, after the descriptor · `given`:
    what the test prepares for the process · `options`, `arguments`: what allows it, for preflight and for CRIU ·
    `taken`: why gcr refuses a thing that CRIU takes · `ip`: an IP socket, which CRIU before 4.2 does not save on new
    kernels · `joins`: the process is in a session that its parent leads · `spared`: why CRIU is not asked
    """

    name: str
    kind: Kind | None = None
    named: str = ""
    given: str = ""
    options: Options | None = None
    arguments: tuple[str, ...] = ()
    taken: str = ""
    ip: bool = False
    joins: bool = False
    spared: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.name, self.given, "joins" if self.joins else "")))


TERMINAL, FILES = Options(terminal=True), Options(file_locks=True)
CLOSE = Options(tcp_close=True)
SHELL, LOCKS, CLOSED = ("--shell-job",), ("--file-locks",), ("--tcp-close",)

SAVED = [
    Thing("nothing"),
    Thing("plain_devices"),
    Thing("mapped_zero"),
    Thing("pair_of_a_terminal"),
    Thing("terminal_of_a_child"),
    Thing("virtual_terminal"),
    Thing("pidfd_of_itself"),
    Thing("pidfd_of_an_ended_child"),
    Thing("plain_descriptors"),
    Thing("deleted_file"),
    Thing("fifo"),
    Thing("segment_of_its_own"),
    Thing("unix_pair"),
    Thing("unix_listener"),
    Thing("unix_connection_to_itself"),
    Thing("tcp_listener", ip=True),
    Thing("tcp_unbound", ip=True),
    Thing("datagrams", ip=True),
    Thing("netlink"),
    Thing("thread"),
    Thing("child"),
    Thing("stopped_child"),
    Thing("zombie"),
]
REFUSED = [
    Thing("device", Kind.DEVICE, r"/dev/fuse \(character device 10:229\)"),
    Thing("device_as_path", Kind.DEVICE, r"/dev/fuse \(character device 10:229\)"),
    Thing("block_device", Kind.DEVICE, r"/dev/loop0 \(block device 7:0\)"),
    Thing("mapped_device", Kind.DEVICE, r"/dev/loop0 \(block device 7:0\)"),
    Thing("slave_of_a_terminal", Kind.TERMINAL, r"/dev/pts/\d+ ", "terminal", TERMINAL, SHELL),
    Thing("two_terminals", Kind.TERMINAL, r"/dev/pts/\d+ ", "terminals"),
    Thing("current_terminal", Kind.TERMINAL, "/dev/tty ", "terminal"),
    Thing("nothing", Kind.SESSION, r"in the session of process \d+", "", TERMINAL, SHELL, joins=True),
    Thing("ring", Kind.IO_URING, r"anon_inode:\[io_uring\]"),
    Thing("mapped_ring", Kind.IO_URING, r"anon_inode:\[io_uring\]"),
    Thing("fault_handler", Kind.USERFAULTFD, r"anon_inode:\[userfaultfd\]"),
    Thing("counter", Kind.PERF_EVENT, r"anon_inode:\[perf_event\]"),
    Thing("mapped_counter", Kind.PERF_EVENT, r"anon_inode:\[perf_event\]"),
    Thing("secret", Kind.SECRET_MEMORY, r"/secretmem \(deleted\)"),
    Thing("mapped_secret", Kind.SECRET_MEMORY, r"/secretmem \(deleted\)"),
    Thing("pidfd_outside", Kind.PIDFD, rf"anon_inode:\[pidfd\] of process {os.getpid()}"),
    Thing("rules", Kind.UNKNOWN_FILE, r"anon_inode:\[landlock-ruleset\]"),
    Thing("message_queue", Kind.UNMOUNTED, r"/gcr-\d+ \(deleted\)"),
    Thing("unix_stream", Kind.UNIX_PEER, r"socket:\[\d+\], .* connected with .*/listener \(inode", "listener"),
    Thing("unix_datagrams", Kind.UNIX_PEER, r"socket:\[\d+\], .* connected with .*/datagrams \(inode", "datagrams"),
    Thing(
        "unix_stream",
        Kind.UNIX_PEER,
        r".* connected with .*/listener \(inode",
        "deaf",
        taken="it would lose the connection",
    ),
    Thing(
        *("unix_listener", Kind.WAITING, r".*/listener \(inode \d+\) with connections to accept: 1", "client"),
        *(Options(skip_in_flight=True), ("--skip-in-flight",), "it would lose the connection"),
    ),
    Thing(
        "unix_stream_from_another_network",
        Kind.UNIX_PEER,
        ".* with .*/listener",
        "listener",
        spared="needs a firewall's programs",
    ),
    Thing(
        "unix_stream_into_another_network",
        Kind.UNIX_PEER,
        ".* with .*/listener",
        "listener",
        spared="needs a firewall's programs",
    ),
    Thing("tcp_established", Kind.TCP, r"127.* to 127.*:\d+, ESTABLISHED", "", CLOSE, CLOSED, ip=True),
    Thing("tcp6_established", Kind.TCP, r"\[::1\]:\d+ to \[::1\]:\d+, ESTABLISHED", "", CLOSE, CLOSED, ip=True),
    Thing("tcp_closing", Kind.TCP, ".*, CLOSE_WAIT", "", CLOSE, CLOSED, ip=True),
    Thing("tcp_connecting", Kind.TCP, ".* to 127.*, SYN_SENT", "full", CLOSE, CLOSED, ip=True),
    Thing(
        *("tcp_to_accept", Kind.WAITING, ".*with connections to accept: 1", ""),
        *(Options(skip_in_flight=True), ("--skip-in-flight",)),
        ip=True,
    ),
    Thing("multipath", Kind.PROTOCOL, "of MPTCP"),
    Thing("virtual_socket", Kind.PROTOCOL, "of AF_VSOCK"),
    Thing("segment", Kind.SHARED_MEMORY, "mapped /SYSV"),
    Thing("file_lock", Kind.FILE_LOCK, ".*/lock, a lock on it", "", FILES, LOCKS),
    Thing("record_lock", Kind.FILE_LOCK, ".*/lock, a lock on it", "", FILES, LOCKS),
    Thing("lock_of_an_open_file", Kind.FILE_LOCK, ".*/lock, a lock on it", "", FILES, LOCKS),
    Thing("lease", Kind.FILE_LOCK, ".*/lock, a lock on it", "", FILES, LOCKS),
    Thing("traced_child", Kind.TRACED, r"traced by process \d+"),
    Thing("first_thread_gone", Kind.FIRST_THREAD, "first thread has ended"),
]


class Held(Struct, frozen=True):
    """A process that holds a thing by the descriptor `fd`, -1 for none."""

    pid: int
    fd: int

    @property
    def tree(self) -> list[int]:
        return tree(self.pid)


Hold = Callable[..., Held]


ACCEPT_S = 10.0  # in which a process's connection has come


class Holders:
    """Processes in `folder`, which end with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> "Holders":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hold(self, thing: Thing | str, stdin: int = subprocess.DEVNULL, stderr: int = subprocess.DEVNULL) -> Held:
        """Starts a process. Skips the test where the kernel does not give the thing."""
        thing = Thing(thing) if isinstance(thing, str) else thing
        given = self._prepared(thing.given)
        process = subprocess.Popen(
            [*(LEADER if thing.joins else ()), sys.executable, "-I", "-S", HOLDING, thing.name, self.folder, given],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        told = json.loads(process.stdout.read() or '{"cannot": "the process ended"}')
        if "cannot" in told:
            pytest.skip(f"{thing.name}: {told['cannot']}")
        if thing.given == "listener":
            self._stack.enter_context(self._listener.accept()[0])
        if thing.given == "client":
            self._client(f"{self.folder}/listener")
        return Held(told["pid"], told["fd"])

    def _prepared(self, given: str) -> str:
        """Makes the thing's other end, and returns its name."""
        if given in ("terminal", "terminals"):
            return ",".join(self._terminal() for _ in range(given.count("s") + 1))
        if given in ("listener", "deaf", "datagrams"):
            return self._listening(given)
        if given == "full":
            return str(self._full())
        return ""

    def _terminal(self) -> str:
        for fd in (ends := os.openpty()):
            self._stack.callback(os.close, fd)
        return os.ttyname(ends[1])

    def _listening(self, given: str) -> str:
        kind = socket.SOCK_DGRAM if given == "datagrams" else socket.SOCK_STREAM
        sock = self._stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        sock.bind(path := f"{self.folder}/{'datagrams' if given == 'datagrams' else 'listener'}")
        if kind == socket.SOCK_STREAM:
            sock.listen()
        sock.settimeout(ACCEPT_S)
        self._listener = sock
        return path

    def _full(self) -> int:
        """Returns the port of a listener that drops each further request to connect."""
        sock = self._stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        self._stack.enter_context(socket.create_connection(sock.getsockname()))
        return sock.getsockname()[1]

    def _client(self, path: str) -> None:
        self._stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)


def _end(process: "subprocess.Popen[bytes]") -> None:
    family = tree(process.pid)[::-1]
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.stdout.close()
    process.wait(10)
