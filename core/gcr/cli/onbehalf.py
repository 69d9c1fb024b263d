"""`gcr run` on behalf of the library: the outcome goes to the library's socket, and nothing to stdout or stderr.

gcr.protocol.begun has the lines on that socket.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from gcr import supervisor
from gcr.cli.logfile import bug
from gcr.errors import GcrError
from gcr.protocol.begun import Begun, Surroundings
from gcr.supervisor import JobSpec

_FAILED_BEFORE_START = 125


def run(fd: int, spec: Callable[[], JobSpec]) -> int:
    """Returns the program's exit code, or 125 where it was not started. The program does not inherit the socket."""
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as library:
        try:
            asked = Surroundings.from_line(library.makefile().readline())
            wanted = replace(spec(), environment=asked.environment, folder=asked.folder)
            done = supervisor.run(wanted, lambda job, pid: _tell(library, Begun(job, pid)))
        except GcrError as error:
            _tell(library, Begun.refused(error))
            return _FAILED_BEFORE_START
        except Exception as error:
            _tell(library, Begun.refused(bug(error)))
            return _FAILED_BEFORE_START
    return done.code


def _tell(library: socket.socket, word: Begun) -> None:
    """Sends the answer; the library may be gone, or have an answer already."""
    with suppress(OSError):
        library.sendall(word.to_line())
        library.shutdown(socket.SHUT_RDWR)
