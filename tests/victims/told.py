"""Does what it is told: each line on standard input is a word and its numbers; each gets one line back.

One dialogue for every vendor's devices. The programs `told_victim.py`, `hip_told.py` and `acl_told.py` give it a device
and add the words that only their runtime knows. What it holds it remembers as (address, bytes, seed); `?` reads it back
and says a digest, or what is wrong.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from device import MIB, Device
from dialogue import note, say

PERIOD = 251
RAMP = bytes(range(PERIOD)) * (2 * MIB // PERIOD)
STEP = len(RAMP) - PERIOD
WHOLE = 64 * MIB  # of what is larger both ends are looked at
END = 4096


def pattern(size: int, seed: int) -> bytes:
    """Every byte follows from the seed and from where it is."""
    first = seed % PERIOD
    if first + size <= len(RAMP):
        return RAMP[first : first + size]
    return (RAMP * (size // len(RAMP) + 2))[first : first + size]


def is_pattern(found: bytearray, seed: int) -> bool:
    """Tells whether each byte is the pattern's. It compares step by step, since a copy of the whole takes longer."""
    view = memoryview(RAMP)
    return all(found.startswith(view[(seed + at) % PERIOD :][: min(STEP, len(found) - at)], at) for at in steps(found))


def steps(found: bytearray) -> range:
    return range(0, len(found), STEP)


class Program:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.held: dict[int, tuple[int, int]] = {}  # address -> bytes, seed
        self.kept: list[Any] = []

    # ---- memory -----------------------------------------------------------------------------------------------

    def fill(self, address: int, size: int) -> None:
        seed = len(self.held) * 37 + 11
        for at, part in parts(size):
            self.device.write(address + at, pattern(part, seed + at))
        self.held[address] = size, seed

    def alloc(self, count: int, size: int) -> str:
        """`count` allocations of `size` bytes."""
        for _ in range(count):
            self.fill(self.device.allocate(size), size)
        return "ok"

    def again(self, index: int) -> str:
        """Other bytes in what is held, the first being 0."""
        address = list(self.held)[index]
        size, seed = self.held[address]
        for at, part in parts(size):
            self.device.write(address + at, pattern(part, seed + 101 + at))
        self.held[address] = size, seed + 101
        return "ok"

    def hold(self, count: int, size: int) -> str:
        """The same, never written and never looked at."""
        self.kept += [self.device.allocate(size) for _ in range(count)]
        return "ok"

    def mixed(self, count: int, smallest: int, largest: int) -> str:
        """Sizes between two, evenly spread over their logarithm."""
        for index in range(count):
            self.alloc(1, int(smallest * (largest / smallest) ** (index / count)))
        return "ok"

    def free_some(self, step: int) -> str:
        """Every `step`-th of what is held and can be freed."""
        for address in list(self.held)[::step]:
            if self.free(address):
                del self.held[address]
        return "ok"

    def free(self, address: int) -> bool:
        self.device.free(address)
        return True

    def handles(self, count: int, exportable: int = 1) -> str:
        """Physical memory of its own, side by side; 0: of a kind that nothing can be exported from."""
        base, size = self.device.handles(count, bool(exportable))
        for index in range(count):
            self.fill(base + index * size, size)
        return "ok"

    def everything(self) -> str:
        return self.take(1 << 40)

    def take(self, limit: int) -> str:
        """Takes what is left of the device, up to `limit` bytes of physical memory. Returns the bytes it got."""
        size, taken = limit, 0
        granule = self.device.granule()
        while (size := size // granule * granule) and taken < limit:
            handle = self.device.physical(min(size, limit - taken))
            if handle is None:
                size //= 2
                continue
            self.kept.append(handle)
            taken += min(size, limit - taken)
        return str(taken)

    def address(self) -> str:
        return " ".join(hex(address) for address in self.held)

    def later(self, seconds: str, script: str) -> str:
        """Python, in hexadecimal and an `h`, on a thread of its own."""
        source = bytes.fromhex(script.removesuffix("h")).decode()
        threading.Timer(float(seconds), lambda: exec(source)).start()
        return "ok"

    def settle(self) -> None:
        """Before everything is read back."""

    def digest(self) -> str:
        self.settle()
        state = hashlib.sha256()
        for address, (size, seed) in self.held.items():
            for at, part in parts(size):
                if not is_pattern(self.device.read(address + at, part), seed + at):
                    return f"wrong: {size} bytes at {address:#x} are not what was written"
                state.update(f"{part} {seed + at} ".encode())  # that is all there is to know of these bytes
        return f"{len(self.held)} held, digest {state.hexdigest()}"


def parts(size: int) -> Iterator[tuple[int, int]]:
    """Offset and bytes of what is written and looked at."""
    if size <= WHOLE:
        yield 0, size
        return
    yield 0, END
    yield size - END, END


def serve(program: Program) -> None:
    note(f"pid {os.getpid()}")
    say("ready")
    for line in sys.stdin:
        name, *words = line.split()
        told = getattr(program, "digest" if name == "?" else name)
        say(told(*(int(word) if word.isdigit() else word for word in words)))
