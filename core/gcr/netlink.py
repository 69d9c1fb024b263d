"""Messages and attributes of the kernel's netlink sockets (netlink(7))."""

import os
import struct
from collections.abc import Iterator
from socket import socket

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, pid
REQUEST, ACKNOWLEDGE, DUMP = 0x1, 0x4, 0x300  # flags
SECONDS = 5.0  # in which the kernel answers
_ERROR, _DONE = 2, 3  # types of messages
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_TYPE = 0x3FFF  # the other bits of an attribute's type are flags
_MOST_BYTES = 1 << 17


def message(type: int, flags: int, body: bytes) -> bytes:
    """Returns a message with its header; its sequence is 0."""
    return HEADER.pack(HEADER.size + len(body), type, flags, 0, 0) + body


def bodies(sock: socket) -> Iterator[bytes]:
    """Yields the bodies of the answer's messages up to its end. Raises OSError, also where the kernel refuses."""
    while True:
        block = sock.recv(_MOST_BYTES)
        while block:
            length, type, *_ = HEADER.unpack_from(block)
            if type == _DONE:
                return
            if type == _ERROR:
                code = -struct.unpack_from("=i", block, HEADER.size)[0]
                if not code:  # an acknowledgement
                    return
                raise OSError(code, os.strerror(code))
            yield block[HEADER.size : length]
            block = block[_aligned(length) :]


def attribute(type: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, type) + value + bytes(_aligned(length) - length)


def attributes(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields type and value of each attribute."""
    while len(block) >= _ATTRIBUTE.size:
        length, type = _ATTRIBUTE.unpack_from(block)
        yield type & _TYPE, block[_ATTRIBUTE.size : length]
        block = block[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
