"""Started by gcrd: `python -m gcr.criu_helper FD`. It ends with the daemon's socket, and CRIU with it.

A program may be lost if CRIU ends while it works inside of it. So this helper, and CRIU as its child, ignore the
signals that end a service or a session, and are the last that the kernel ends when memory is short. Once the helper has
ended with its socket, CRIU lets the program go by itself.
"""

import gcr.starting

# isort: split
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from gcr.criu_helper.service import CriuService
from gcr.protocol.channel import Channel
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # a service's end, a session's, and Ctrl-C
_OOM = Path("/proc/self/oom_score_adj")
_NEVER, _USUAL = -1000, 0  # the first needs CAP_SYS_RESOURCE


def main(argv: list[str]) -> int:
    _outlast()
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s criu %(message)s")
    over = threading.Event()
    Channel(
        socket.socket(fileno=int(argv[0])),
        CriuService().operations().serve,
        on_close=lambda _channel: over.set(),
        name="gcrd",
        bounds=COORDINATOR,
    ).start()
    over.wait()
    os._exit(0)  # without the consent of this process CRIU lets the tree run on


def _outlast() -> None:
    """Protects this process, and those that it starts."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        _OOM.write_text(str(min(int(_OOM.read_text()), _USUAL)))
        _OOM.write_text(str(_NEVER))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
