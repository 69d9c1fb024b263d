"""Traces that a daemon leaves for its successor, read by commands that find no daemon."""

from pathlib import Path

from gcr.job.journal import standing
from gcr.rendezvous.folder import DaemonFolder
from gcr.rendezvous.presence import living
from gcr.runtime import former_journal, is_default_socket


def left_behind(socket: Path) -> bool:
    """Returns True if a daemon that served at the socket would have jobs to wait for. Raises UnsafeRuntime, OSError."""
    folder = DaemonFolder.of(socket)
    if living(folder.path) or _decisions(folder.journal):
        return True
    return is_default_socket(socket) and _decisions(former_journal())


def _decisions(journal: Path) -> bool:
    found = standing(journal)
    return bool(found.records or found.unreadable)
