"""Unix sockets that CRIU cannot save: those with an end that is not saved with them."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gcr.criu.preflight.facts import Opened, socket_inodes
from gcr.criu.preflight.namespaces import namespaces
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options
from gcr.criu.preflight.unixdiag import UnixSocket, unix_sockets


class Ends(Struct, frozen=True):
    """The Unix sockets of the tree's namespaces by inode. `ours`: inodes of the tree's own sockets."""

    sockets: Mapping[int, UnixSocket]
    ours: frozenset[int]

    def other(self, inode: int) -> int | None:
        """Returns the inode of the other end, or of the socket that has yet to accept; None without one."""
        found = self.sockets[inode]
        return found.peer or next((each.inode for each in self.sockets.values() if inode in each.waiting), None)

    def strangers(self, inode: int) -> int:
        """Returns how many connections of other processes this socket has yet to accept."""
        return len([each for each in self.sockets[inode].waiting if each not in self.ours])

    def name(self, inode: int) -> str:
        return self.sockets[inode].name if inode in self.sockets else ""

    def described(self, inode: int) -> str:
        name = self.name(inode)
        return f"{name} (inode {inode})" if name else f"inode {inode}"


def of_unix_sockets(held: Sequence[Opened], pids: Sequence[int], options: Options) -> Iterator[Obstacle]:
    """Yields sockets connected with one outside of the tree, and listeners with connections from outside to accept."""
    sockets: dict[int, UnixSocket] = {}
    for pid in namespaces(held):
        try:
            sockets.update(unix_sockets(pid))
        except PermissionError:
            yield Obstacle(pid, Kind.UNREADABLE, "sockets of its network namespace")
        except (FileNotFoundError, ProcessLookupError):
            continue
    ours = frozenset(file.inode for file in held) | socket_inodes(pids)  # again: an end may have been opened meanwhile
    ends = Ends(sockets, ours)
    for file in held:
        if file.inode not in options.unix_sockets and file.is_still_open():
            yield from _of_unix_socket(file, ends, options)


def _of_unix_socket(file: Opened, ends: Ends, options: Options) -> Iterator[Obstacle]:
    if file.inode not in ends.sockets:
        yield Obstacle(file.pid, Kind.UNIX_PEER, f"{file.name}, a Unix socket of another network namespace")
        return
    other = ends.other(file.inode)
    if other and other not in ends.ours and ends.name(other) not in options.unix_names:
        text = f"{file.name}, a Unix socket connected with {ends.described(other)} outside of the tree"
        yield Obstacle(file.pid, Kind.UNIX_PEER, text)
    if (waiting := ends.strangers(file.inode)) and not options.skip_in_flight:
        text = f"{file.name}, the Unix socket {ends.described(file.inode)} with connections to accept: {waiting}"
        yield Obstacle(file.pid, Kind.WAITING, text)
