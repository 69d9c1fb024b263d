"""Started by gcrd: `python -m gcr.criu_helper FD`. It ends with the daemon's socket, and CRIU with it."""

import gcr.starting

# isort: split
import logging
import os
import socket
import sys
import threading

from gcr.criu_helper.service import CriuService
from gcr.protocol.channel import Channel
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()


def main(argv: list[str]) -> int:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
