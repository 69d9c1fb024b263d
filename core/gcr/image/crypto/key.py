"""The key of an encrypted store, which its owner keeps in a file, or which a command prints.

The command line or the library reads it, since the command may ask its owner, and the daemon may not see the file.
From there it goes as a sealed memory file to the process that writes or reads the image; the daemon passes the
descriptor on. So a key is in no argument, environment, message, log or error.
"""

import base64
import binascii
import fcntl
import math
import os
import select
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gcr import config
from gcr.errors import DeadlinePassed, GcrError, UsageError
from gcr.imageerrors import KeyUnusable
from gcr.runtime import expanded

KEY_BYTES = 32
COMMAND_SECONDS = 60.0  # for a command to end, or for a key to be written into a pipe
_MOST_BYTES = 4096  # far more than a key has
_POLL = 0.05
_LEAST_KINDS = 12  # different bytes; 32 random bytes have fewer once in 10^12
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_HINT = "openssl rand -hex 32 makes one"


@dataclass(slots=True)
class KeySource:
    """The source of a key: a file, a command, or neither for no key.

    The key is read once, when it is first needed. Reading takes at most COMMAND_SECONDS, or `timeout` if that is less.
    """

    file: str = ""
    command: str = ""
    timeout: float | None = None
    _key: bytes | None = field(default=None, repr=False)

    @classmethod
    def chosen(cls, file: str | None = None, command: str | None = None, timeout: float | None = None) -> Self:
        """Returns the given source, else that of the settings; an empty name is none. Raises UsageError."""
        if file is None and command is None:
            settings = config.load()
            file, command = settings.key_file, settings.key_command
        if file and command:
            raise UsageError("a key comes from a file or from a command, not from both")
        return cls(file or "", command or "", timeout)

    def key(self) -> bytes | None:
        """Returns 32 bytes, or None without a key. Raises KeyUnusable, DeadlinePassed."""
        patience = min(COMMAND_SECONDS, self.timeout or math.inf)
        if self._key is None and self.file:
            self._key = _parsed(_read(expanded(self.file), patience), self.file)
        elif self._key is None and self.command:
            words = _words(self.command)
            self._key = _parsed(_printed(words, patience), words[0])
        return self._key

    @contextmanager
    def lent(self) -> Iterator[Sequence[int]]:
        """Yields a descriptor of the key for another process, or no descriptor without a key. Raises KeyUnusable."""
        key = self.key()
        if key is None:
            yield ()
            return
        fd = _sealed(key)
        try:
            yield (fd,)
        finally:
            os.close(fd)


def lent_key(fds: Sequence[int], encrypted: bool) -> bytes | None:
    """Returns the key that `lent` lent, None if the store is not `encrypted`. Raises UsageError if the two disagree."""
    found = [os.pread(fd, KEY_BYTES + 1, 0) for fd in fds]
    if len(found) != encrypted or any(len(key) != KEY_BYTES for key in found):
        raise UsageError("the key of the store did not arrive")
    return found[0] if found else None


def _sealed(key: bytes) -> int:
    fd = os.memfd_create("gcr-key", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, key)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _late(text: str, patience: float) -> GcrError:
    """Returns the error for a key that did not come in time: the caller's deadline, or COMMAND_SECONDS."""
    if patience < COMMAND_SECONDS:
        return DeadlinePassed(f"{text} {patience:g} s", hint="a longer --timeout")
    return KeyUnusable(f"{text} {patience:g} s")


def _read(path: Path, patience: float) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise KeyUnusable(f"the key file {path} cannot be read: {error.strerror}") from error
    try:
        _refuse_what_others_reach(path, os.fstat(fd))
        return _all_of(fd, lambda: False, patience)
    except TimeoutError:
        raise _late(f"no key was written into {path} for", patience) from None
    except OSError as error:
        raise KeyUnusable(f"the key file {path} cannot be read: {error.strerror}") from error
    finally:
        os.close(fd)


def _refuse_what_others_reach(path: Path, found: os.stat_result) -> None:
    """Raises KeyUnusable for a file that others can read, and so decrypt images, or write, and so choose the key."""
    if found.st_uid not in (os.getuid(), 0):
        raise KeyUnusable(f"the key file {path} belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        hint = f"chmod 600 {path}" if stat.S_ISREG(found.st_mode) else ""
        raise KeyUnusable(f"the key file {path} is open to others: mode {mode:04o}", hint=hint)


def _all_of(fd: int, over: Callable[[], bool], patience: float) -> bytes:
    """Reads to the end, but not far more than a key has. Once `over` returns True, it reads only what is there.

    Another process may still hold the pipe open then. Raises TimeoutError, OSError.
    """
    found, end = b"", time.monotonic() + patience
    while len(found) < _MOST_BYTES:
        ended = over()  # asked before the read: the process may write just before it ends
        if select.select([fd], [], [], 0.0 if ended else _POLL)[0]:
            some = os.read(fd, _MOST_BYTES)
            found += some
            ended = not some
        if ended:
            break
        if time.monotonic() > end:
            raise TimeoutError
    return found


def _words(command: str) -> Sequence[str]:
    """Splits a command as a shell would; no shell runs it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise KeyUnusable(f"the command for the key does not parse: {error}") from error
    if not words:
        raise KeyUnusable("the command for the key is empty")
    return words


def _printed(words: Sequence[str], patience: float) -> bytes:
    """Returns the output of a command; its stderr stays the caller's."""
    import subprocess  # only a key command needs it

    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise KeyUnusable(f"{words[0]}, which should print the key, cannot be run: {error.strerror}") from error
    assert process.stdout
    with process.stdout as out:
        try:
            found = _all_of(out.fileno(), lambda: process.poll() is not None, patience)
            code = process.wait(patience) if len(found) < _MOST_BYTES else 0
        except (TimeoutError, subprocess.TimeoutExpired):
            raise _late(f"{words[0]}, which should print the key, took longer than", patience) from None
        finally:
            process.kill()
            process.wait()
    if code:
        raise KeyUnusable(f"{words[0]}, which should print the key, failed with exit code {code}")
    return found


def _parsed(found: bytes, source: str) -> bytes:
    """Returns the key. Raises KeyUnusable if there is none, or one that is not random; the error does not repeat it."""
    key = _decoded(found)
    if key is None:
        what = f"{len(found)} bytes that are no key: that is 32 random bytes, or their hexadecimal digits, or base64"
        raise KeyUnusable(f"{source} gives {what}", hint=_HINT)
    if len(set(key)) < _LEAST_KINDS:
        raise KeyUnusable(f"{source} gives a key that is not random", hint=_HINT)
    return key


def _decoded(found: bytes) -> bytes | None:
    """Returns None for 32 bytes of text too: that is a passphrase, which is guessed more easily than a key."""
    if len(found) == KEY_BYTES:
        return None if found.isascii() and found.decode().isprintable() else found
    text = found.strip()
    try:
        key = binascii.unhexlify(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None
