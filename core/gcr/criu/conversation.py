"""One conversation with CRIU: `criu swrk FD` answers requests on a socket, and ends with it."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from gcr.criu import messages
from gcr.criu.messages import RequestType
from gcr.errors import CriuUnusable

MOST_BYTES = 1 << 16  # a response has a text of CRIU's at most
LAST_BYTES, LAST_SECONDS = 500, 2.0  # of the last line that CRIU wrote


class Conversation(Struct, frozen=True):
    """`process` is CRIU, in a process group of its own; what it writes is kept for an error's message."""

    sock: socket.socket
    process: "subprocess.Popen[bytes]"

    def ask(self, type: RequestType, timeout: float, **fields: Any) -> Any:
        """Returns CRIU's response, a success or not. Raises CriuUnusable where none comes in `timeout` seconds."""
        self.sock.settimeout(timeout)
        request = messages.request(type, **fields)
        try:
            self.sock.send(request)
            payload = self.sock.recv(MOST_BYTES)
        except TimeoutError as error:
            raise CriuUnusable(f"CRIU did not answer {type.name} in {timeout:g} s") from error
        except ConnectionError:
            payload = b""
        if not payload:
            raise CriuUnusable(f"CRIU ended before it answered {type.name}{self._last_words()}")
        return self._response(type, payload)

    def _response(self, type: RequestType, payload: bytes) -> Any:
        try:
            found = messages.response(payload)
        except ValueError as error:
            raise CriuUnusable(f"CRIU did not answer {type.name}: {error}") from error
        if found.type != type:
            raise CriuUnusable(f"CRIU answered {found.type} and not {type.name}")
        return found

    def _last_words(self) -> str:
        """Returns the last line that CRIU wrote, once it has ended."""
        try:
            text = self.process.communicate(timeout=LAST_SECONDS)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            return ""
        return f": {text.splitlines()[-1][:LAST_BYTES]}" if text else ""


@contextmanager
def conversation(program: Path) -> Iterator[Conversation]:
    """Starts CRIU for the block, and ends it and its children afterwards. Raises CriuUnusable."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        try:
            process = subprocess.Popen(
                [program, "swrk", str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise CriuUnusable(f"{program} cannot be started: {error.strerror}") from error
        its.close()
        try:
            yield Conversation(ours, process)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()
