"""The check of a process tree before CRIU saves it: its obstacles, and the files that its new parent gives it again."""

import os
import stat
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct

from gcr.criu.preflight.descriptors import of_descriptors, of_mappings
from gcr.criu.preflight.devices import of_devices, of_terminals
from gcr.criu.preflight.facts import Facts, Opened, facts
from gcr.criu.preflight.obstacle import Kind, Obstacle, Options
from gcr.criu.preflight.sockets import of_sockets
from gcr.criu.preflight.tasks import of_tasks
from gcr.processes import descendants

STANDARD = range(3)
_PIPE = "pipe:"


class External(Struct, frozen=True):
    """An open file that CRIU saves as a reference only: at a restore the caller gives it again.

    `inode`: of a pipe, by which CRIU names it · `writes`, `reads`: what the descriptor is open for
    """

    pid: int
    fd: int
    path: str
    inode: int
    reads: bool
    writes: bool


def tree(root: int) -> list[int]:
    """Returns the process and its descendants, the process first."""
    return [root, *descendants(root)]


def obstacles(pids: Sequence[int], members: Collection[int], options: Options) -> list[Obstacle]:
    """Returns what CRIU cannot save of these processes, the root first; `members` are those under gcr.

    A process that ends meanwhile has no obstacles.
    """
    return sorted(_of_all(facts(pids), members, options), key=lambda each: pids.index(each.pid))


def _of_all(found: Facts, members: Collection[int], options: Options) -> Iterator[Obstacle]:
    yield from of_tasks(found, options)
    yield from of_devices(found, members, options)
    yield from of_terminals(found, options)
    yield from of_descriptors(found, options)
    yield from of_mappings(found)
    yield from of_sockets(found, options)


def externals(pids: Sequence[int], options: Options) -> list[External]:
    """Returns pipes and FIFOs with an end outside of the tree, files that are standard streams, and the Unix sockets
    that the caller passes on.
    """
    found = facts(pids)
    whole = _whole_pipes(found)
    return [_external(file) for file in found.opened if _is_external(file, whole, options)]


def _is_external(file: Opened, whole: Collection[tuple[int, int]], options: Options) -> bool:
    if stat.S_ISFIFO(file.mode):
        return file.place not in whole
    if stat.S_ISSOCK(file.mode):
        return file.inode in options.unix_sockets
    return stat.S_ISREG(file.mode) and file.fd in STANDARD


def _whole_pipes(found: Facts) -> Collection[tuple[int, int]]:
    """Returns the pipes of which the tree has both ends."""
    pipes = [file for file in found.opened if stat.S_ISFIFO(file.mode)]
    read = {file.place for file in pipes if file.access != os.O_WRONLY}
    return read & {file.place for file in pipes if file.access != os.O_RDONLY}


def _external(file: Opened) -> External:
    reads, writes = file.access != os.O_WRONLY, file.access != os.O_RDONLY
    return External(file.pid, file.fd, file.path, file.inode, reads, writes)


def open_pipes(found: Sequence[External]) -> list[Obstacle]:
    """Returns those that are pipes, and no standard streams: no parent can give them again."""
    pipes = [each for each in found if each.fd not in STANDARD and each.path.startswith(_PIPE)]
    return [
        Obstacle(each.pid, Kind.PIPE, f"descriptor {each.fd}, {each.path}, with an end elsewhere") for each in pipes
    ]
