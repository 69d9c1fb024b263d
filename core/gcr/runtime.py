"""Folders of gcr's socket, state and logs (docs/contract.md §6), and the check that no other user can reach in.

A directory of gcr belongs to the user and has mode 0700. A link in its place, another owner or a wider mode is refused,
never mended: a user who could change that could also have put a file inside.
"""

import os
import stat
from pathlib import Path

from gcr.errors import NoHome, UnsafeRuntime

SOCKET_NAME = "gcrd.sock"
_OURS_ALONE = 0o077, "0700: others could read or change what is in it"
_OURS_TO_WRITE = 0o022, "0700, 0711 or 0755: others could change what is in it"


def runtime_dir() -> Path:
    """`$XDG_RUNTIME_DIR/gcr`, else `<tmp>/gcr-<uid>`; made when missing. Raises UnsafeRuntime."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return own_directory(Path(base) / "gcr" if base else _temporary() / f"gcr-{os.getuid()}")


def socket_path() -> Path:
    """The daemon's socket: `$GCR_SOCKET`, else in the runtime directory. Raises UnsafeRuntime."""
    chosen = os.environ.get("GCR_SOCKET")
    return Path(chosen) if chosen else runtime_dir() / SOCKET_NAME


def is_default_socket(path: Path) -> bool:
    """Returns whether a daemon without `$GCR_SOCKET` would serve there. Raises UnsafeRuntime."""
    return path == runtime_dir() / SOCKET_NAME


def state_dir() -> Path:
    """`$XDG_STATE_HOME/gcr`, else `~/.local/state/gcr`, else `state` in the runtime directory. Raises UnsafeRuntime.

    The last is for a user without a home that can be written to, as one of a number alone in a container.
    """
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return own_directory(Path(base) / "gcr")
    home = home_dir()
    path = home / ".local" / "state" / "gcr" if home else None
    return own_directory(path if path and _can_be_made(path) else runtime_dir() / "state")


def data_dir() -> Path:
    """`$XDG_DATA_HOME/gcr`, else `~/.local/share/gcr`. Raises UnsafeRuntime, NoHome."""
    base, home = os.environ.get("XDG_DATA_HOME"), home_dir()
    if base:
        return own_directory(Path(base) / "gcr")
    path = home / ".local" / "share" / "gcr" if home else None
    if path is None or not _can_be_made(path):
        where = f"nothing can be written under {home}" if home else f"user {os.getuid()} has no home directory"
        raise NoHome(f"no store was named, and {where}", hint="set GCR_STORE, or XDG_DATA_HOME")
    return own_directory(path)


def home_dir() -> Path | None:
    """Returns the home directory; None where neither `$HOME` nor the system's list of users names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def expanded(text: str) -> Path:
    """A path that may begin with `~`. Raises NoHome where there is no such home directory."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise NoHome(f"{text}: {error}", hint="set HOME, or name the whole path") from error


def _can_be_made(path: Path) -> bool:
    """Returns whether the folder may be written to and entered; for a missing one, its nearest ancestor that exists."""
    there = path
    try:
        while not there.exists():
            there = there.parent
    except OSError:
        return False
    return os.access(there, os.W_OK | os.X_OK)


def log_dir() -> Path:
    return own_directory(state_dir() / "log")


def former_journal() -> Path:
    """Returns the folder in which gcr 0.1 kept the records of all daemons; it may be missing. Raises UnsafeRuntime."""
    return runtime_dir() / "journal"


def own_directory(path: Path) -> Path:
    """Make `path` (0700) if it is missing and check that it is ours alone. Raises UnsafeRuntime."""
    try:
        _make(path)
    except OSError as error:
        raise UnsafeRuntime(f"cannot make {path}: {error.strerror}", hint=f"check who owns {path.parent}") from error
    check_own_directory(path)
    return path


def _make(path: Path) -> None:
    """Missing parents as well, all closed to other users."""
    if not path.parent.exists():
        _make(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def check_own_directory(path: Path) -> None:
    """Raises UnsafeRuntime unless `path` is a real directory of this user, closed to all others."""
    _check_directory(path, *_OURS_ALONE)


def open_own_directory(path: Path, enterable: bool = False) -> int:
    """Returns a descriptor (O_PATH) of a directory that is ours alone, checked by that descriptor.

    enterable: other users may enter and read it, and still write nothing. Raises UnsafeRuntime.
    """
    rule = _OURS_TO_WRITE if enterable else _OURS_ALONE
    try:
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        _check_directory(path, *rule)  # says it better
        raise UnsafeRuntime(f"{path}: {error.strerror}") from error
    try:
        check_directory(path, os.fstat(folder), *rule)
    except BaseException:
        os.close(folder)
        raise
    return folder


def check_unshared_directory(path: Path) -> None:
    """Raises UnsafeRuntime unless `path` is a real directory, ours, and no other user can write in it."""
    _check_directory(path, *_OURS_TO_WRITE)


def _check_directory(path: Path, forbidden: int, wanted: str) -> None:
    try:
        found = path.lstat()
    except OSError as error:
        raise UnsafeRuntime(f"{path}: {error.strerror}") from error
    check_directory(path, found, forbidden, wanted)


def check_directory(path: Path, found: os.stat_result, forbidden: int, wanted: str) -> None:
    """Raises UnsafeRuntime unless `found` is of a directory, ours, without the `forbidden` bits of its mode."""
    hint = f"look at `ls -ld {path}`: gcr wants a directory of its own there, or another place"
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeRuntime(f"{path} is not a directory", hint=hint)
    if found.st_uid != os.getuid():
        raise UnsafeRuntime(f"{path} belongs to user {found.st_uid}, not to {os.getuid()}", hint=hint)
    if found.st_mode & forbidden:
        mode = f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, not {wanted}"
        raise UnsafeRuntime(mode, hint=f"chmod 700 {path}, or another directory")


def _temporary() -> Path:
    import tempfile  # slow, and a session has a directory of its own

    return Path(tempfile.gettempdir())
