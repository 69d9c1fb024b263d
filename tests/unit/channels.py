"""Both ends of a channel in tests: what they do, the operations that they declare, the descriptors that they leave."""

import contextlib
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from gcr.protocol.channel import Request
from gcr.protocol.operations.operation import Operation
from gcr.protocol.wire import (
    FrameType,
)


def declared(*tables: ModuleType) -> list[type[Operation[Any]]]:
    """Returns the operations of these modules; a class without a name on the socket is a base of others."""
    names = {each for table in tables for each in vars(table).values() if isinstance(each, type)}
    found = sorted((each for each in names if issubclass(each, Operation)), key=lambda each: each.__name__)
    return [each for each in found if hasattr(each, "op") and each is not Operation]


def descriptors() -> dict[str, str]:
    """Returns the open descriptors of this process, without that of the listing itself."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[entry.name] = str(entry.readlink())
    return found


def open_descriptors() -> int:
    """Returns how many descriptors of this process are open."""
    return len(descriptors())


def eventually(true, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not (done := true()) and time.monotonic() < end:
        time.sleep(0.005)
    return done


def temporary(content: bytes = b"x") -> int:
    fd = os.memfd_create("test")
    os.write(fd, content)
    return fd


def content(fd: int) -> bytes:
    return os.pread(fd, 100, 0)


def echo(request: Request) -> None:
    """JSON: the body and the descriptors again. Other frames: the payload."""
    if request.frame.type != FrameType.CALL:
        request.reply(request.frame.payload)
        return
    body = request.json()
    fds = request.take_fds()
    try:
        request.reply_json({"echo": body}, fds)
    finally:
        for fd in fds:
            os.close(fd)


def raising(error: BaseException):
    def serve(_request: Request) -> None:
        raise error

    return serve
