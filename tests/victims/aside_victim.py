"""Has gcr save its device memory, and writes other bytes at once; then says whether the first ones were saved.

Each line on standard input gets one line back:

    save          asks for a copy of every buffer, and overwrites them all as soon as it may
    window [room] asks for the first buffer aside and for all others in place, or aside as far as there is `room`;
                  overwrites the first one, and says how many bytes are read in place
    open          says whether a buffer may not be written yet
    ends          overwrites all buffers as soon as it may
    early         overwrites them before
    quits         ends the last save before it is read
    frees N       frees a buffer
    adds          allocates one more, which later saves are of as well
    late          asks, says `asked`, and writes to the buffers after another line; then they may be copied
    gives_up      asks, and is interrupted before its buffers may be copied
    saved         waits for the oldest copy, and says `right`, `wrong`, or the error
    drained       waits until all copies are on the host
    beyond        asks for bytes behind a buffer
    elsewhere A   asks for bytes at the address A
    more N        allocates N bytes, and says whether there was room
    ?             says a number for the bytes that the buffers have now
"""

import argparse
import hashlib
import sys
from contextlib import suppress

from device import VENDORS, open_device
from dialogue import say

from gcr.checkpoints.aside import Aside, Span
from gcr.errors import GcrError

ODD = 3 << 10  # bytes that a span begins and ends within a buffer, to cross the borders of allocations and of chunks


class Program:
    def __init__(self, vendor: str, buffers: int, size: int) -> None:
        self.device, self.size = open_device(vendor), size
        self.addresses = [self.device.allocate(size) for _ in range(buffers)]
        self.round = 0
        self.copies: list[tuple[int, Aside]] = []
        self.write()

    def pattern(self, buffer: int, number: int) -> bytes:
        block = hashlib.sha256(f"{number} {buffer}".encode()).digest()
        return (block * (self.size // len(block) + 1))[: self.size]

    def write(self) -> None:
        self.round += 1
        for number, address in enumerate(self.addresses):
            self.device.write(address, self.pattern(number, self.round))

    def spans(self, aside: int) -> list[Span]:
        """Returns a span of each buffer; the first `aside` ones are copied aside."""
        return [Span(address + ODD, self.size - ODD, number >= aside) for number, address in enumerate(self.addresses)]

    def save(self) -> str:
        copy = Aside.of(self.spans(len(self.addresses)), self.nothing)
        self.copies.append((self.round, copy))
        self.write()
        return "ok"

    def window(self, room: str = "") -> str:
        copy = Aside.of(self.spans(1), self.nothing, fills=bool(room))
        self.copies.append((self.round, copy))
        self.device.write(self.addresses[0], self.pattern(0, self.round + 1))
        return str(copy.in_place_bytes)

    def open(self) -> str:
        return "no" if self.copies[-1][1].safe.done() else "yes"

    def ends(self) -> str:
        try:
            self.copies[-1][1].safe.result(60)
        finally:
            self.write()
        return "ok"

    def early(self) -> str:
        self.write()
        return "ok"

    def quits(self) -> str:
        self.copies[-1][1].give_up()
        return "ok"

    def frees(self, number: str) -> str:
        self.device.free(self.addresses.pop(int(number)))
        return "ok"

    def adds(self) -> str:
        self.addresses.append(self.device.allocate(self.size))
        self.device.write(self.addresses[-1], self.pattern(len(self.addresses) - 1, self.round))
        return "ok"

    def late(self) -> str:
        """Writes to the buffers once more after it has asked, on another line of standard input."""
        copy = Aside.of(self.spans(len(self.addresses)), self.write_when_told)
        self.copies.append((self.round, copy))
        return "ok"

    def write_when_told(self) -> None:
        say("asked")
        sys.stdin.readline()
        self.write()

    def gives_up(self) -> str:
        with suppress(KeyboardInterrupt):
            Aside.of([Span(self.addresses[0], 1)], self.interrupted)
        return "ok"

    def interrupted(self) -> None:
        raise KeyboardInterrupt

    def nothing(self) -> None:
        """No work of the device is under way."""

    def saved(self) -> str:
        number, copy = self.copies.pop(0)
        copy.arrived.result(60)
        found = [bytes(copy.memory(index)) for index in range(len(self.addresses))]
        whole = [self.pattern(index, number)[ODD:] for index in range(len(self.addresses))]
        return "right" if found == whole else "wrong"

    def drained(self) -> str:
        for _, copy in self.copies:
            copy.arrived.result(60)
        return "ok"

    def beyond(self) -> str:
        Aside.of([Span(max(self.addresses), 1 << 32)], self.nothing)
        return "ok"

    def elsewhere(self, address: str) -> str:
        Aside.of([Span(int(address, 16), 4096)], self.nothing)
        return "ok"

    def more(self, size: str) -> str:
        self.device.allocate(int(size))
        return "ok"

    def digest(self) -> str:
        found = [bytes(self.device.read(address, self.size)) for address in self.addresses]
        whole = [self.pattern(index, self.round) for index in range(len(self.addresses))]
        return f"{self.round} {'right' if found == whole else 'wrong'}"

    def answer(self, line: str) -> str:
        name, *words = line.split()
        told = getattr(self, "digest" if name == "?" else name)
        try:
            return str(told(*words))
        except GcrError as error:
            return f"{error.code}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vendor", choices=VENDORS, default="nvidia")
    parser.add_argument("--buffers", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=3 << 20)
    options = parser.parse_args()
    program = Program(options.vendor, options.buffers, options.bytes)
    say("ready")
    for line in sys.stdin:
        say(program.answer(line))


if __name__ == "__main__":
    main()
