"""Files of CRIU's about pages, written and read by hand."""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

PAGE, WINDOW = 4096, 16 * 4096
PRESENT, LAZY, PARENT = 4, 2, 1
HEAD = bytes.fromhex("19435654 25400856")  # the two magic numbers of a pagemap
HEAD_OF_MEMORY = bytes.fromhex("19435654 20284957")  # and of a file about a process's memory
HEAD_OF_THREAD = bytes.fromhex("19435654 47380555")  # and of one about a thread
PRIVATE, OF_A_FILE = 1 << 9 | 1, 1 << 6 | 1  # status of an area

Entry = tuple[int, int, int]  # number of the first page, pages, flags


def number(value: int) -> bytes:
    """Returns a number as protobuf writes it, by hand."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def pagemap(entries: Sequence[Entry], pages_id: int = 1, *, of_criu_4_2: bool = False) -> bytes:
    """CRIU 4.2 writes the number of pages last, and 0 where it was before."""
    bodies = [b"\x08" + number(pages_id)]
    for first, count, flags in entries:
        before, after = (0, b"\x28" + number(count)) if of_criu_4_2 else (count, b"")
        bodies.append(b"\x08" + number(first * PAGE) + b"\x10" + number(before) + b"\x20" + number(flags) + after)
    return HEAD + b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def dumped(folder: Path, entries: Sequence[Entry], pages: int | None = None) -> Path:
    there = sum(count for _, count, flags in entries if flags & PRESENT)
    (folder / "pagemap-7.img").write_bytes(pagemap(entries))
    (folder / "pages-1.img").write_bytes(bytes(PAGE * (there if pages is None else pages)))
    return folder


def memory(areas: Sequence[Entry]) -> bytes:
    """Returns a file about a process's memory. An area has the number of its first page, its pages and its status."""
    body = b""
    for first, count, status in areas:
        area = b"\x08" + number(first * PAGE) + b"\x10" + number((first + count) * PAGE) + b"\x38" + number(status)
        body += b"\x72" + number(len(area)) + area
    return HEAD_OF_MEMORY + struct.pack("<I", len(body)) + body


def core(rseq: int) -> bytes:
    """Returns a file about a thread that has its rseq at this address."""
    noted = b"\x08" + number(rseq) + b"\x10" + number(32)
    thread = b"\x7a" + number(len(noted)) + noted
    body = b"\x2a" + number(len(thread)) + thread
    return HEAD_OF_THREAD + struct.pack("<I", len(body)) + body


def entries_of(data: bytes) -> Iterator[Entry]:
    """Reads a pagemap with entries of three fields, or of four as CRIU 4.2 has them."""
    at = len(HEAD)
    bodies = []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        bodies.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    for body in bodies[1:]:
        values, at = [], 0
        while at < len(body):
            at, value, shift = at + 1, 0, 0
            while True:
                byte, at = body[at], at + 1
                value, shift = value | (byte & 127) << shift, shift + 7
                if byte < 128:
                    break
            values.append(value)
        address, count, flags, *late = values
        assert not late or count == 0
        yield address // PAGE, *(late or [count]), flags
