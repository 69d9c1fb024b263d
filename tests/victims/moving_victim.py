"""A program that goes on while it moves: each step writes a part of its memory, and reads that part back.

Its output depends on its own steps alone, so it is the same wherever it runs, and however often it was copied.
"""

import hashlib
import os
import random
import struct
import sys
from pathlib import Path

from cuda_device import CudaDevice
from device import Device
from dialogue import parser, perform

CHUNK, PART, BLOCK, PAGE, WORK = 256 << 10, 1 << 20, 64 << 20, 4 << 10, 32 << 20


class Moving:
    def __init__(self, device: Device, size: int, parts: int, host: int, launches: int) -> None:
        self.device, self.parts, self.all = device, parts, size // PART
        self.work = Work(self.device, launches) if launches else None
        blocks = [self.device.allocate(min(BLOCK, size - at)) for at in range(0, size, BLOCK)]
        self.addresses = [blocks[at // BLOCK] + at % BLOCK for at in range(0, self.all * PART, PART)]
        self.number = 0
        for place, address in enumerate(self.addresses):
            self.device.write(address, _words(place))
        self.host = bytearray(host)  # noise, of which each step writes one page
        for at in range(0, host, PART):
            self.host[at : at + PART] = random.Random(at).randbytes(min(PART, host - at))

    def step(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        if self.host:
            at = (self.number + 1) * 7919 * PAGE % len(self.host)
            self.host[at : at + 64] = hashlib.blake2b(struct.pack("<Q", self.number)).digest()
            digest.update(self.host[at : at + PAGE])
        for _ in range(self.parts):
            self.number += 1
            address = self.addresses[self.number * 7919 % self.all]
            if self.work:
                self.work.write(address, self.number)
            else:
                self.device.write(address, _words(self.number << 32))
                digest.update(self.device.read(address, PART))
        if self.work:
            self.work.step()
        return digest.hexdigest()

    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for address in self.addresses:
            digest.update(self.device.read(address, PART))
        digest.update(self.host)
        if self.work:
            digest.update(self.device.read(self.work.address, WORK))
        return digest.hexdigest()


class Work:
    """Keeps the device busy, and the host hardly: kernels that count on in memory of their own, one after the other."""

    def __init__(self, device: Device, launches: int) -> None:
        self.device, self.launches = device, launches
        self.address, self.stream = device.allocate(WORK), device.stream()
        device.write(self.address, bytes(WORK))
        self.add = device.adder(os.environ.get("GCR_SIM_KERNELS", str(Path(__file__).with_name("add.ptx"))))

    def write(self, address: int, number: int) -> None:
        """Has the device write a part; no other chunk has the same bytes."""
        for chunk in range(PART // CHUNK):
            self.device.fill(address + chunk * CHUNK, CHUNK // 8, number * (PART // CHUNK) + chunk, self.stream)

    def step(self) -> None:
        for _ in range(self.launches):
            self.add(self.stream, self.address, WORK // 8, 1)
        self.device.wait(self.stream)


def _words(seed: int) -> bytes:
    """Returns bytes of which no two chunks are the same: an image would have such chunks once."""
    return b"".join(_chunk(4 * seed + number) for number in range(PART // CHUNK))


def _chunk(seed: int) -> bytes:
    return hashlib.blake2b(struct.pack("<Q", seed), digest_size=64).digest() * (CHUNK // 64)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=16 * PART, help="bytes of device memory")
    options.add_argument("--parts", type=int, default=1, help="parts of 1 MiB that a step writes")
    options.add_argument(
        "--host", type=int, default=0, help="bytes of noise on the host, of which each step writes a page"
    )
    options.add_argument("--launches", type=int, default=0, help="kernels over 32 MiB in each step")
    given = options.parse_args()
    perform(given, Moving(CudaDevice(), given.size, given.parts, given.host, given.launches))
    print("ended", file=sys.stderr)


if __name__ == "__main__":
    main()
