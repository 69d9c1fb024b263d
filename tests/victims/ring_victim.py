"""Processes in a ring, each of which holds the memory of the one before it, by a descriptor that went through a socket.

Each fills the first half of its own memory, and the second half of its neighbour's. Each line is answered for all:

    ?          every word is as the last rounds left it: the number of rounds
    round      one more round
    pids       their pids
    renew N    process N frees its memory, makes it anew, and lends that
    free N     process N frees its memory, which the next one still holds
    drop N     process N lets go of the memory of the one before
    offer P    the first one lends its memory to a process of another ring, at the socket P
    take P     the first one holds memory of the one that offers it there
    aside      all at once have gcr save memory of their own, and then memory of the one before, which is refused

Nothing else of gcr's is used. `--legacy`: by the legacy calls, whose 64 bytes go through the socket instead.
`--vendor`: whose devices, `nvidia` (the default) or `amd`.
"""

import argparse
import hashlib
import os
import socket
import subprocess
import sys
import threading
from typing import Any, cast

from device import open_device
from dialogue import say
from lending import ONLY_FLAG, SharingDevice

MIB = 1 << 20
OWN, OTHER = int(os.environ.get("RING_OWN_MIB", "2")), 1  # MiB of memory for itself alone, and of what is lent


def pattern(rank: int, turn: int, size: int) -> bytes:
    return hashlib.shake_128(f"{rank} {turn}".encode()).digest(64) * (size // 64)


class Member:
    """One process. `before` and `after`: sockets to its neighbours."""

    def __init__(self, vendor: str, rank: int, count: int, before: socket.socket, after: socket.socket) -> None:
        self.rank, self.count, self.rounds = rank, count, 0
        self.before, self.after = before, after
        self.device = cast(SharingDevice, open_device(vendor))
        self.size = -(-OTHER * MIB // self.device.granule()) * self.device.granule()
        self.alone = self.device.allocate(OWN * MIB)
        self.device.write(self.alone, pattern(rank, -1, OWN * MIB))
        self.own: tuple[int, Any] = self._make()
        self.theirs = 0

    def _make(self) -> tuple[int, Any]:
        handle = self.device.make(self.size)
        return self.device.map(handle, self.size), handle

    def lend(self) -> str:
        descriptor = self.device.exported(self.own[1])
        socket.send_fds(self.after, [b"t"], [descriptor])
        os.close(descriptor)
        return "ok"

    def borrow(self) -> str:
        _, (descriptor,), _, _ = socket.recv_fds(self.before, 1, 1)
        handle = self.device.imported(descriptor)
        self.theirs = self.device.map(handle, self.size)
        self.device.release(handle)  # mapped, it stays
        os.close(descriptor)
        return "ok"

    def give_back(self) -> str:
        if self.theirs:
            self.device.unmap(self.theirs, self.size)
            self.theirs = 0
        return "ok"

    def free(self) -> str:
        self.device.unmap(self.own[0], self.size)
        self.device.release(self.own[1])
        self.own = 0, None
        return "ok"

    def make(self) -> str:
        self.own = self._make()
        return "ok"

    def offer(self, path: str) -> str:
        door = socket.socket(socket.AF_UNIX)
        door.bind(path)
        door.listen()
        descriptor = self.device.exported(self.own[1])
        threading.Thread(target=lambda: socket.send_fds(door.accept()[0], [b"t"], [descriptor])).start()
        return "ok"

    def take(self, path: str) -> str:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            _, (descriptor,), _, _ = socket.recv_fds(caller, 1, 1)
        self.device.map(self.device.imported(descriptor), self.size)
        return "ok"

    def aside(self) -> str:
        from gcr.checkpoints.aside import Aside, Span  # here alone
        from gcr.errors import UnsupportedState

        half = self.size // 2
        copy = Aside.of([Span(self.own[0], half), Span(self.alone, OWN * MIB)], self.device.granule)
        self.device.write(self.own[0], bytes(half))
        copy.arrived.result(60)
        found = [bytes(copy.memory(number)) for number in range(2)]
        self.device.write(self.own[0], pattern(self.rank, self.rounds, half))
        assert found == [pattern(self.rank, self.rounds, half), pattern(self.rank, -1, OWN * MIB)], "saved"
        try:
            Aside.of([Span(self.alone, 1), Span(self.theirs, 1)], self.device.granule)
        except UnsupportedState:
            return "ok"
        return "wrong: memory of another was saved"

    def write(self) -> str:
        self.rounds += 1
        half = self.size // 2
        self.device.write(self.own[0], pattern(self.rank, self.rounds, half))
        self.device.write(self.theirs + half, pattern(self.rank, self.rounds, half))
        return "ok"

    def look(self) -> str:
        """Reads all that it holds."""
        half, rounds = self.size // 2, self.rounds
        assert bytes(self.device.read(self.alone, OWN * MIB)) == pattern(self.rank, -1, OWN * MIB), "own"
        after, before = (self.rank + 1) % self.count, (self.rank - 1) % self.count
        if self.own[0]:
            assert bytes(self.device.read(self.own[0], half)) == pattern(self.rank, rounds, half), "lent"
            assert bytes(self.device.read(self.own[0] + half, half)) == pattern(after, rounds, half), "by another"
        assert bytes(self.device.read(self.theirs, half)) == pattern(before, rounds, half), "of another"
        return str(rounds)


class LegacyMember(Member):
    """The same by the legacy calls for it."""

    def _make(self) -> tuple[int, Any]:
        return self.device.allocate(self.size), None

    def lend(self) -> str:
        self.after.send(self.device.lend(self.own[0]))
        return "ok"

    def borrow(self) -> str:
        code, self.theirs = self.device.borrow(self.before.recv(64), ONLY_FLAG)
        return "ok" if code == 0 else f"code {code}"

    def give_back(self) -> str:
        assert self.device.give_back(self.theirs) == 0
        return "ok"

    def free(self) -> str:
        self.device.free(self.own[0])
        self.own = 0, None
        return "ok"


def member() -> None:
    vendor, *numbers = sys.argv[2:]
    rank, count, before, after, legacy = map(int, numbers)
    kind = LegacyMember if legacy else Member
    its = kind(vendor, rank, count, socket.socket(fileno=before), socket.socket(fileno=after))
    say("ready")
    for line in sys.stdin:
        try:
            word, *rest = line.split()
            say(getattr(its, word)(*rest))
        except AssertionError as wrong:
            say(f"wrong {wrong}")


class Ring:
    def __init__(self, vendor: str, count: int, legacy: bool) -> None:
        pairs = [socket.socketpair() for _ in range(count)]
        self.members = [self._start(vendor, rank, pairs, legacy) for rank in range(count)]
        for each in self.members:
            assert self._hear(each) == "ready"
        self.all("lend", "borrow")
        self.all("write")

    @staticmethod
    def _start(
        vendor: str, rank: int, pairs: list[tuple[socket.socket, socket.socket]], legacy: bool
    ) -> "subprocess.Popen[str]":
        ends = pairs[rank - 1][1].fileno(), pairs[rank][0].fileno()
        numbers = rank, len(pairs), *ends, int(legacy)
        command = [sys.executable, __file__, "member", vendor, *map(str, numbers)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, pass_fds=ends)

    @staticmethod
    def _hear(one: "subprocess.Popen[str]") -> str:
        assert one.stdout
        return one.stdout.readline().strip() or "gone"

    def ask(self, one: "subprocess.Popen[str]", word: str) -> str:
        assert one.stdin
        try:
            one.stdin.write(f"{word}\n")
            one.stdin.flush()
        except BrokenPipeError:
            return "gone"
        return self._hear(one)

    def all(self, *words: str) -> str:
        """Tells all members each word, one word after another. Returns their answers to the last, once if all agree."""
        answers: list[str] = []
        for word in words:
            answers = [self.ask(one, word) for one in self.members]
        return answers[0] if len({*answers}) == 1 else " ".join(answers)

    def together(self, word: str) -> str:
        """Tells all members the word, and then hears all. Returns their answers, once if all agree."""
        for one in self.members:
            assert one.stdin
            one.stdin.write(f"{word}\n")
            one.stdin.flush()
        answers = [*map(self._hear, self.members)]
        return answers[0] if len({*answers}) == 1 else " ".join(answers)

    def answer(self, line: str) -> str:
        word, *which = line.split()
        if word == "round":
            return self.all("write", "look")
        if word == "pids":
            return " ".join(str(one.pid) for one in self.members)
        if word == "free":
            return self.ask(self.members[int(which[0])], "free")
        if word == "drop":
            return self.ask(self.members[int(which[0])], "give_back")
        if word in ("offer", "take"):
            return self.ask(self.members[0], line.strip())
        if word == "aside":
            return self.together("aside")
        if word == "renew":
            return self._renew(int(which[0]))
        return self.all("look")

    def _renew(self, rank: int) -> str:
        one, after = self.members[rank], self.members[(rank + 1) % len(self.members)]
        for who, word in ((after, "give_back"), (one, "free"), (one, "make"), (one, "lend"), (after, "borrow")):
            assert self.ask(who, word) == "ok"
        return self.all("write", "look")


def main() -> None:
    if sys.argv[1] == "member":
        return member()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--vendor", choices=("nvidia", "amd"), default="nvidia")
    options = parser.parse_args()
    ring = Ring(options.vendor, options.count, options.legacy)
    say("ready")
    for line in sys.stdin:
        say(ring.answer(line))
    for one in ring.members:
        assert one.stdin
        one.stdin.close()
        one.wait()
    return None


if __name__ == "__main__":
    main()
