"""A nursery of processes that each serve a Peer until its socket closes: `python -m gcr.testing.peer_main FD MODULE…`.

It imports the modules first (gcr.testing.nursery.import_first).
"""

import importlib
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from gcr.backend import Backend
from gcr.errors import GcrError
from gcr.protocol.jsonbody import error_to_json
from gcr.testing.nursery import next_order
from gcr.testing.peer import MAX_DESCRIPTORS, MAX_PACKET
from gcr.testing.serving.contents import Contents
from gcr.testing.serving.control import Control
from gcr.testing.serving.memory import Memory, Passed
from gcr.testing.serving.opened import Opened
from gcr.testing.serving.own import OwnProcess

Operations = Mapping[str, Callable[..., object]]


def operations(backend: Backend, passed: Passed) -> Operations:
    """Returns what a child serves, which has one drain and one control, as a worker and a helper do."""
    opened = Opened(backend)
    parts = OwnProcess(backend), Memory(opened, passed), Contents(opened), Control(backend)
    return {name: getattr(part, name) for part in parts for name in vars(type(part)) if not name.startswith("_")}


def _answer(served: Operations, packet: bytes) -> tuple[str, object]:
    method, arguments = pickle.loads(packet)
    try:
        return "value", served[method](*arguments)
    except GcrError as error:
        return "gcr", error_to_json(error)
    except Exception:
        return "foreign", traceback.format_exc()


def serve(backend: Backend, connection: socket.socket) -> None:
    passed = Passed([], [])
    served = operations(backend, passed)
    while True:
        packet, passed.received, _flags, _from = socket.recv_fds(connection, MAX_PACKET, MAX_DESCRIPTORS)
        if not packet:
            return
        reply = _answer(served, packet)
        socket.send_fds(connection, [pickle.dumps(reply)], passed.sending)
        for fd in passed.sending:
            os.close(fd)
        passed.sending = []


def main(fd: int, modules: Sequence[str]) -> None:
    for module in modules:
        with suppress(ImportError):  # a peer tries for itself, and tells
            importlib.import_module(module)
    with socket.socket(fileno=fd) as line:
        order = next_order(line)  # in a new process
    module, name = order.backend.split(":")
    backend: Backend = getattr(importlib.import_module(module), name)()
    with socket.socket(fileno=order.line) as connection:
        serve(backend, connection)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
