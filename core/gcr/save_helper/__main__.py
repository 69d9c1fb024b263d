"""The save helper, started by a program that saves: `python -m gcr.save_helper PID FD`.

PID is the program's process. The helper has less claim to the processors than the program. It ends when the socket
closes, or when the program ends: a child of the program may keep the socket open. A share under way is left then, and
no step names it.
"""

import gcr.starting

# isort: split
import os
import socket
import sys
import threading

from gcr import descriptors
from gcr.protocol.channel import Channel
from gcr.protocol.servers import COORDINATOR
from gcr.save_helper.service import SaveService

gcr.starting.imported()

NICE = 5
LOOK_S = 0.5


def main(argv: list[str]) -> int:
    program, fd = map(int, argv)
    os.nice(NICE)
    descriptors.raise_limit()
    over = threading.Event()
    channel = Channel(
        socket.socket(fileno=fd),
        SaveService().operations.serve,
        on_close=lambda _channel: over.set(),
        name=f"process {program}",
        bounds=COORDINATOR,
    )
    channel.start()
    while os.getppid() == program and not over.wait(LOOK_S):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
