"""`gcr run` on behalf of the library: the outcome goes to the library's socket, and nothing to stdout or stderr.

library -> gcr run   {"environment": {…} | null, "folder": "…" | null}            one line
gcr run -> library   {"job": "llm", "pid": 4711}, or {"error": {…}}                one line, then the end
"""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from gcr import supervisor
from gcr.cli.logfile import bug
from gcr.errors import GcrError
from gcr.protocol.jsonbody import error_to_json
from gcr.supervisor import JobSpec

_FAILED_BEFORE_START = 125


def run(fd: int, spec: Callable[[], JobSpec]) -> int:
    """Returns the program's exit code, or 125 where it was not started. The program does not inherit the socket."""
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as library:
        try:
            asked = json.loads(library.makefile().readline())
            wanted = replace(spec(), environment=asked["environment"], folder=asked["folder"])
            done = supervisor.run(wanted, lambda job, pid: _tell(library, {"job": job, "pid": pid}))
        except GcrError as error:
            _tell(library, {"error": error_to_json(error)})
            return _FAILED_BEFORE_START
        except Exception as error:
            _tell(library, {"error": error_to_json(bug(error))})
            return _FAILED_BEFORE_START
    return done.code


def _tell(library: socket.socket, answer: dict[str, Any]) -> None:
    """Sends the answer; the library may be gone, or have an answer already."""
    with suppress(OSError):
        library.sendall(json.dumps(answer).encode() + b"\n")
        library.shutdown(socket.SHUT_RDWR)
