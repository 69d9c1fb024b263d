"""Compares the output of programs that moved with that of the same program on memory of this process, without a driver.

    python benchmarks/bare_moving.py FILE…        results of benchmarks/migrate.py

Each result has a digest of all that the program printed: a line for each step, and at the end a digest of its memory.
No part of gcr takes part here. Of a chunk that repeats itself only the first bytes are kept.
"""

import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

VICTIMS = Path(__file__).resolve().parents[1] / "tests" / "victims"
sys.path.insert(0, str(VICTIMS))

from device import Device  # noqa: E402
from dialogue import WARM  # noqa: E402
from moving_victim import CHUNK, Moving  # noqa: E402

GIB, MIB = 1 << 30, 1 << 20
SOME = 64  # bytes


class HostDevice:
    """The calls of the program, on chunks by address. Addresses and sizes are whole chunks."""

    def __init__(self) -> None:
        self._end = CHUNK
        self._chunks: dict[int, bytes] = {}

    def allocate(self, size: int) -> int:
        address, self._end = self._end, self._end + size
        return address

    def write(self, address: int, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            chunk = data[at : at + CHUNK]
            repeats = chunk == chunk[:SOME] * (CHUNK // SOME)
            self._chunks[address + at] = chunk[:SOME] if repeats else chunk

    def read(self, address: int, size: int) -> bytearray:
        return bytearray(b"".join(self._chunk(at) for at in range(address, address + size, CHUNK)))

    def _chunk(self, address: int) -> bytes:
        kept = self._chunks[address]
        return kept * (CHUNK // len(kept))

    def fill(self, address: int, words: int, half: int, _stream: Any) -> int:
        self.write(address, half.to_bytes(4, "little") * (2 * words))
        return half << 32 | half

    def adder(self, _module: str) -> Callable[[Any, int, int, int], None]:
        def add(_stream: Any, address: int, words: int, value: int) -> None:
            for at in range(address, address + 8 * words, CHUNK):
                kept = memoryview(self._chunks[at]).cast("Q")
                self._chunks[at] = b"".join((each + value).to_bytes(8, "little") for each in kept)

        return add

    def stream(self) -> None: ...

    def wait(self, _stream: Any) -> None: ...


def printed(found: dict[str, Any], steps: int) -> str:
    """Returns the digest of all that the program prints in so many steps."""
    size, host = int(found["gib"] * GIB), found["host_mib"] * MIB
    program = Moving(cast(Device, HostDevice()), size, found["parts"], host, found["launches"])
    for _ in range(WARM):
        program.step()
    text = "ready\n" + "".join(f"step {number} {program.step()}\n" for number in range(steps))
    return sha256(f"{text}steps {steps}\ndigest {program.digest()}\n".encode()).hexdigest()


def main() -> int:
    wrong = 0
    for name in sys.argv[1:]:
        found = json.loads(Path(name).read_text())
        for run in found["runs"]:
            right = printed(found, run["steps"]) == run["printed"]
            print(f"{name}: {run['steps']} steps: {'as a bare run' if right else 'NOT what a bare run prints'}")
            wrong += not right
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
