"""The folder of one daemon: what its successor and every command must find after the daemon is gone.

    <state>/daemons/<key>/about.json   which daemon: its socket, the boot of the machine, the namespace of its pids
                          lock         locked by the daemon while it lives
                          journal/     decision records, see gcr.job.journal

It lies in the state directory, where neither a logout nor a cleaner of temporary files reaches. The key is made of the
three facts in about.json, so a home directory that several machines or containers share has a folder for each daemon.
A pid means nothing after a reboot or in another namespace: a daemon never takes up another key's records.
"""

import json
import socket
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Self

from msgspec import Struct, to_builtins

from gcr.processes import boot_id, pid_space
from gcr.runtime import own_directory, state_dir


class About(Struct, frozen=True):
    """Facts that tell one daemon from every other. `boot` and `pids` are empty where the kernel does not say."""

    socket: str
    boot: str
    pids: str
    host: str

    @classmethod
    def here(cls, path: Path) -> Self:
        """The daemon that serves, or would serve, at this socket."""
        return cls(_settled(path), boot_id(), pid_space(), socket.gethostname())

    @property
    def key(self) -> str:
        text = "\0".join((self.socket, self.boot, self.pids))
        return blake2b(text.encode(errors="surrogateescape"), digest_size=8, person=b"gcr daemon").hexdigest()

    def is_over(self, here: "About") -> bool:
        """Returns True if the machine was started again since: no process of that daemon's jobs is left."""
        return self.host == here.host and bool(self.boot and here.boot) and self.boot != here.boot

    def shares_pids_with(self, here: "About") -> bool:
        return (self.boot, self.pids) == (here.boot, here.pids)


class DaemonFolder(Struct, frozen=True):
    path: Path

    @classmethod
    def of(cls, path: Path) -> Self:
        """The folder for the socket at `path`; it may not be there yet. Raises UnsafeRuntime."""
        return cls(_daemons() / About.here(path).key)

    @classmethod
    def all(cls) -> Sequence[Self]:
        """The folders of all daemons of this user, living or not. Raises UnsafeRuntime, OSError."""
        return [cls(path) for path in sorted(_daemons().iterdir()) if path.is_dir()]

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    def about(self) -> About | None:
        """Returns the facts of the daemon; None if they cannot be read."""
        try:
            return About(**json.loads((self.path / "about.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def make(self, path: Path) -> Self:
        """Create the folder, and say there for which socket it is. Raises UnsafeRuntime, OSError."""
        own_directory(self.path)
        fresh = self.path / "about.json.new"
        fresh.write_text(json.dumps(to_builtins(About.here(path))))
        fresh.replace(self.path / "about.json")
        return self


def _daemons() -> Path:
    return own_directory(state_dir() / "daemons")


def _settled(path: Path) -> str:
    """One spelling for all paths that lead to the socket."""
    return str(path.parent.resolve() / path.name)
