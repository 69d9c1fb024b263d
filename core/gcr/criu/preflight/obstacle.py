"""Obstacles to CRIU and their remedies, and the options of CRIU that allow some of them."""

from enum import Enum

from msgspec import Struct

from gcr.declarations import declarations


class Kind(Enum):
    """Reasons why CRIU cannot save a process, or would save it without a part of its state."""

    NOT_A_MEMBER = "not_a_member"
    DEVICE = "device"
    TERMINAL = "terminal"
    SESSION = "session"
    FOREIGN_SESSION = "foreign_session"
    NAMESPACE = "namespace"
    LEFT_BEHIND = "left_behind"
    IO_URING = "io_uring"
    USERFAULTFD = "userfaultfd"
    PERF_EVENT = "perf_event"
    SECRET_MEMORY = "secret_memory"
    PIDFD = "pidfd"
    RDMA = "rdma"
    UNKNOWN_FILE = "unknown_file"
    UNMOUNTED = "unmounted"
    UNIX_PEER = "unix_peer"
    WAITING = "waiting"
    TCP = "tcp"
    HALF_OPEN = "half_open"
    PROTOCOL = "protocol"
    OLD_CRIU = "old_criu"
    SHARED_MEMORY = "shared_memory"
    FILE_LOCK = "file_lock"
    TRACED = "traced"
    FIRST_THREAD = "first_thread"
    PIPE = "pipe"
    UNREADABLE = "unreadable"


REMEDIES = {
    Kind.NOT_A_MEMBER: "start this process under gcr as well, or let it close its device first",
    Kind.DEVICE: "close the device first: no option of CRIU allows it",
    Kind.TERMINAL: "redirect it: no option of gcr allows a terminal",
    Kind.SESSION: "start the program as the leader of a session (setsid)",
    Kind.FOREIGN_SESSION: "start the program as the leader of a session (setsid): no option of CRIU allows this one",
    Kind.NAMESPACE: "start it in the namespaces of gcr, or let the runtime of its container save it",
    Kind.LEFT_BEHIND: "end that one first: as long as it lives, no other process can have this pid",
    Kind.IO_URING: "run the program without io_uring (libuv: UV_USE_IO_URING=0)",
    Kind.USERFAULTFD: "close the userfaultfd first: no option of CRIU allows it",
    Kind.PERF_EVENT: "end the profiler first: no option of CRIU allows its counters",
    Kind.SECRET_MEMORY: "let the program release its secret memory first (memfd_secret)",
    Kind.PIDFD: "let the program close its handle of a process that is not saved with it",
    Kind.RDMA: "let the program close its RDMA device first: no option of CRIU allows it",
    Kind.UNKNOWN_FILE: "close it first: CRIU does not know this type of file",
    Kind.UNMOUNTED: "close it first: its file system is not mounted for this process",
    Kind.UNIX_PEER: "close the connection first: no option of gcr allows it",
    Kind.WAITING: "let the program accept it first",
    Kind.TCP: "close the connection first, or pass --allow `tcp-established` to keep it, or `tcp-close` to drop it",
    Kind.HALF_OPEN: "wait until the connection is established or closed: no option of CRIU allows this state",
    Kind.PROTOCOL: "close the socket first: CRIU does not know its protocol",
    Kind.OLD_CRIU: "install CRIU 4.2 or newer: an older one saves no such socket on Linux 6.16 and later",
    Kind.SHARED_MEMORY: "start the program in an IPC namespace of its own, or let it detach the segment (shmdt)",
    Kind.FILE_LOCK: "let the program release the lock first, or pass --allow `file-locks`",
    Kind.TRACED: "detach the debugger or tracer first",
    Kind.FIRST_THREAD: "let the first thread of this process outlive its other threads: no option of CRIU allows this",
    Kind.PIPE: "close it first, or let the other end be in the tree: gcr gives standard streams alone again",
    Kind.UNREADABLE: "run gcr as the user of this process, or as root",
}


class Obstacle(Struct, frozen=True):
    """A thing that CRIU cannot save. `object`: its path or name, with the number of its descriptor if it has one."""

    pid: int
    kind: Kind
    object: str

    @property
    def remedy(self) -> str:
        """Returns one sentence; it names the option of CRIU that allows the thing, if one does."""
        return REMEDIES[self.kind]

    def __str__(self) -> str:
        return f"process {self.pid}: {self.object}: {self.remedy}"


class Options(Struct, frozen=True):
    """Options that the caller will pass to CRIU, and facts that only the caller knows.

    `terminal`: CRIU's `shell-job` · `session`: the same, for a session that the tree does not lead, and no terminal ·
    `unix_sockets`: inodes of sockets that the caller closes or passes on itself · `unix_names`: names of listeners;
    the caller ends all connections with them ·
    `ip_sockets`: False where this CRIU saves no IP socket on this kernel (`saves_ip_sockets`) · `device_files`:
    beginnings of paths that a member of gcr gives up before the dump; another process that has one is an obstacle
    """

    tcp_established: bool = False
    tcp_close: bool = False
    skip_in_flight: bool = False
    file_locks: bool = False
    terminal: bool = False
    session: bool = False
    unix_sockets: frozenset[int] = frozenset()
    unix_names: frozenset[str] = frozenset()
    ip_sockets: bool = True
    device_files: tuple[str, ...] = ()


def device_files() -> tuple[str, ...]:
    """Returns the beginnings of paths of device memory: the backends' device files, and dma-bufs."""
    return (*(path for each in declarations().values() for path in each.device_files), "/dmabuf:")
