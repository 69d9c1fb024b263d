"""Started by gcrd: `python -m gcr.image_helper FD`. Ends with the daemon's socket, but not before its image is durable.

It has a copy of all that it needs when it begins to write, and keeps that still by itself: neither the death of the
daemon or a worker nor the job's next checkpoint changes a byte of the image.
"""

import gcr.starting

# isort: split
import logging
import os
import socket
import sys
import threading

from gcr.image_helper.service import ImageService
from gcr.protocol.channel import Channel
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()


def main(argv: list[str]) -> int:
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s image %(message)s")
    service, over = ImageService(), threading.Event()
    channel = Channel(
        socket.socket(fileno=int(argv[0])),
        service.serve,
        on_close=lambda _channel: over.set(),
        name="gcrd",
        bounds=COORDINATOR,
    )
    channel.start()
    over.wait()
    service.finish()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
