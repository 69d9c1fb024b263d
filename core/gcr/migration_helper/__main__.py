"""Started by gcrd: `python -m gcr.migration_helper FD`. It ends with the daemon's socket, and its commands with it."""

import gcr.starting

# isort: split
import logging
import os
import socket
import sys
import threading

from gcr.migration_helper import commands, service
from gcr.protocol.channel import Channel
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()


def main(argv: list[str]) -> int:
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s migration %(message)s")
    over = threading.Event()
    Channel(
        socket.socket(fileno=int(argv[0])),
        service.serve,
        on_close=lambda _channel: over.set(),
        name="gcrd",
        bounds=COORDINATOR,
    ).start()
    over.wait()
    commands.end_all()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
