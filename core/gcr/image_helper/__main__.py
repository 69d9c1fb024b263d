"""The image helper, started by gcrd: `python -m gcr.image_helper FD`.

It ends with the daemon's socket, but not before an image that it writes is durable. When it begins to write, it holds
all memory that it needs, and keeps it still. So neither the death of the daemon or a worker nor the job's next
checkpoint changes a byte of the image.
"""

import gcr.starting

# isort: split
import logging
import os
import socket
import sys
import threading

from gcr import descriptors
from gcr.image_helper.service import ImageService
from gcr.interpreter import switch_often
from gcr.protocol.channel import Channel
from gcr.protocol.servers import COORDINATOR

gcr.starting.imported()


def main(argv: list[str]) -> int:
    logging.basicConfig(level=os.environ.get("GCR_LOG_LEVEL", "INFO"), format="%(asctime)s image %(message)s")
    descriptors.raise_limit()
    switch_often()
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
