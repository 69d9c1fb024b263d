"""A CRIU helper, as the daemon sees it. A method is one JSON call.

It raises what the helper raised, PeerGone or DeadlinePassed.
"""

from pathlib import Path

from msgspec import Struct

from gcr.peers.waiting import CALL_TIMEOUT
from gcr.protocol.channel import Channel
from gcr.protocol.operations import criu as ops
from gcr.protocol.operations.operation import ask

LOOK_S = 60.0  # CRIU looks at each feature of the kernel


class CriuPeer(Struct):
    """A CRIU helper: it saves one process tree. The tree runs on if the channel closes before `end`."""

    channel: Channel
    pid: int

    def look(self, asked: ops.Look) -> ops.Seen:
        """Returns the tree, and what is in the way of a dump. Raises CriuUnusable."""
        return ask(self.channel, asked, timeout=LOOK_S)[0]

    def prepare(self, folder: Path, timeout: float, covered: int) -> None:
        """Has CRIU started for a `dump` that may follow. The tree runs on. `covered`: see Prepare."""
        ask(self.channel, ops.Prepare(str(folder), timeout, covered), timeout=CALL_TIMEOUT)

    def dump(self, folder: Path, timeout: float) -> None:
        """Writes the tree that was looked at to the folder. It stands still then. Raises NotDumped, CriuUnusable."""
        ask(self.channel, ops.Dump(str(folder), timeout), timeout=timeout + CALL_TIMEOUT)

    def check(self) -> None:
        """Returns if the tree has stood still since. Raises CriuUnusable where CRIU has ended, and it runs on."""
        ask(self.channel, ops.Check(), timeout=CALL_TIMEOUT)

    def end(self) -> None:
        """Ends the tree that was dumped."""
        ask(self.channel, ops.End(), timeout=CALL_TIMEOUT)
