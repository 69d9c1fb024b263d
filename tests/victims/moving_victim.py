"""A program that goes on while it moves: each step writes a part of its memory, and reads that part back.

Its output depends on its own steps alone, so it is the same wherever it runs, and however often it was copied.
"""

import hashlib
import struct

from cuda_device import CudaDevice
from dialogue import parser, perform

CHUNK, PART, BLOCK = 256 << 10, 1 << 20, 64 << 20


class Moving:
    def __init__(self, size: int, parts: int) -> None:
        self.device, self.parts, self.all = CudaDevice(), parts, size // PART
        blocks = [self.device.allocate(min(BLOCK, size - at)) for at in range(0, size, BLOCK)]
        self.addresses = [blocks[at // BLOCK] + at % BLOCK for at in range(0, self.all * PART, PART)]
        self.number = 0
        for place, address in enumerate(self.addresses):
            self.device.write(address, _words(place))

    def step(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for _ in range(self.parts):
            self.number += 1
            address = self.addresses[self.number * 7919 % self.all]
            self.device.write(address, _words(self.number << 32))
            digest.update(self.device.read(address, PART))
        return digest.hexdigest()

    def digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for address in self.addresses:
            digest.update(self.device.read(address, PART))
        return digest.hexdigest()


def _words(seed: int) -> bytes:
    """Returns bytes of which no two chunks are the same: an image would have such chunks once."""
    return b"".join(_chunk(4 * seed + number) for number in range(PART // CHUNK))


def _chunk(seed: int) -> bytes:
    return hashlib.blake2b(struct.pack("<Q", seed), digest_size=64).digest() * (CHUNK // 64)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=16 * PART, help="bytes of device memory")
    options.add_argument("--parts", type=int, default=1, help="parts of 1 MiB that a step writes")
    given = options.parse_args()
    perform(given, Moving(given.size, given.parts))


if __name__ == "__main__":
    main()
