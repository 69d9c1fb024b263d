"""A CRIU helper, as the daemon sees it. A method is one JSON call.

It raises what the helper raised, PeerGone or DeadlinePassed.
"""

from collections.abc import Collection, Sequence
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

    def look(
        self, root: int, members: Collection[int], device_files: Sequence[str], listener: Path, allow: Sequence[str]
    ) -> ops.Seen:
        """Returns the tree, and what is in the way of a dump. Raises CriuUnusable."""
        asked = ops.Look(root, tuple(sorted(members)), tuple(device_files), str(listener), tuple(allow))
        return ask(self.channel, asked, timeout=LOOK_S)[0]

    def dump(self, root: int, folder: Path, device_files: Sequence[str], allow: Sequence[str], timeout: float) -> None:
        """Writes the tree to the folder. It stands still when this returns. Raises NotDumped, CriuUnusable."""
        asked = ops.Dump(root, str(folder), timeout, tuple(device_files), tuple(allow))
        ask(self.channel, asked, timeout=timeout + CALL_TIMEOUT)

    def end(self) -> None:
        """Ends the tree that was dumped."""
        ask(self.channel, ops.End(), timeout=CALL_TIMEOUT)
