"""The pages that a process has in memory and CRIU would save, as the kernel finds them: PAGEMAP_SCAN, since Linux 6.7.

CRIU 4.2 saves of a private mapping what is there or swapped out, but no pages of a file that are as the file has them,
and no page that the kernel gives all processes for zeros. A test compares with its dump.

Source: Documentation/admin-guide/mm/pagemap.rst and include/uapi/linux/fs.h of Linux 6.7.
"""

import fcntl
import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
_REQUEST = struct.Struct("=12Q")
_WALKED = 4  # field of a request: the address that the scan came to
_FIELDS = 3  # of a region: begin, end, categories
_REGIONS = 1024  # that one call returns
_WALK_BYTES = 256 << 20  # that one call walks: the kernel lets the process map no memory meanwhile, 0.5 ms at most
_OF_FILE, _PRESENT, _SWAPPED, _ZERO = 1 << 2, 1 << 3, 1 << 4, 1 << 5  # categories


class Run(NamedTuple):
    """Addresses of pages that follow each other. `swapped`: they are not in memory, but where the kernel swaps to."""

    begin: int
    end: int
    swapped: bool


def scanned(pagemap: int, begin: int, end: int) -> Iterator[Run]:
    """Yields the runs of a private mapping in order. `pagemap`: a descriptor of /proc/PID/pagemap.

    Raises OSError: ENOTTY where Linux is older, ESRCH once the process has ended.
    """
    regions = array("Q", bytes(8 * _FIELDS * _REGIONS))
    while begin < end:
        spared, there = _ZERO | _OF_FILE, _PRESENT | _SWAPPED
        most, to = min(end, begin + _WALK_BYTES), regions.buffer_info()[0]
        facts = _REQUEST.size, 0, begin, most, 0, to, _REGIONS, 0, spared, spared, there, _SWAPPED
        request = bytearray(_REQUEST.pack(*facts))
        found = fcntl.ioctl(pagemap, _SCAN, request)
        for at in range(0, _FIELDS * found, _FIELDS):
            yield Run(regions[at], regions[at + 1], bool(regions[at + 2] & _SWAPPED))
        walked = _REQUEST.unpack(request)[_WALKED]
        if walked <= begin:  # it would never end
            return
        begin = walked
