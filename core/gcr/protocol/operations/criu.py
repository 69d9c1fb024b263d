"""The operations of a CRIU helper, which saves one process tree: `look`, `prepare` perhaps, `dump`, then `end`.

A tree that was dumped and not ended runs on once the connection has closed.
"""

from msgspec import Struct

from gcr.protocol.operations.operation import Nothing, Operation


class Seen(Struct, frozen=True):
    """A tree and its obstacles. `pids`: the root first · `in_the_way`: one sentence each · `remedy`: of the first."""

    pids: tuple[int, ...]
    in_the_way: tuple[str, ...]
    remedy: str


class Look(Operation[Seen], frozen=True):
    """The helper looks at a tree, which it may be asked to dump then.

    members: pids of processes that give up their devices · backend, simulated: their driver
    device_files: beginnings of paths of more devices; their contents may change
    listener: the name of a Unix socket; all connections with it end before the dump
    allow: options of CRIU's
    """

    op = "look"

    root: int
    members: tuple[int, ...]
    backend: str
    simulated: bool
    device_files: tuple[str, ...]
    listener: str
    allow: tuple[str, ...]


class Prepare(Operation[Nothing], frozen=True):
    """CRIU is started, and waits for `dump` with the same folder before it looks at the tree, which runs on.

    timeout: of the dump, in seconds; the wait does not count
    covered: bytes of private addresses that the processes will have covered by then (shim/src/device/release.h)
    """

    op = "prepare"

    folder: str
    timeout: float
    covered: int = 0


class Dump(Operation[Nothing], frozen=True):
    """The tree that was looked at goes into the folder. It stands still when the answer comes.

    Private memory may stay in the processes.
    """

    op = "dump"

    folder: str
    timeout: float


class Check(Operation[Nothing], frozen=True):
    """The tree has stood still since it was saved. An error where CRIU has ended: then it ran on."""

    op = "check"


class End(Operation[Nothing], frozen=True):
    """The tree ends. The answer comes when it has ended."""

    op = "end"
