"""Does what it is told, on Ascend's runtime through ctypes: each line is a word and its numbers; each gets one back.

What it holds it remembers as (address, bytes, seed); `?` reads everything back and says a digest.
"""

import ctypes
import hashlib
import sys
from collections.abc import Callable

from acl_calls import (
    HBM_HUGE,
    HBM_HUGE1G,
    LOCK_PRE,
    UNLOCK_POST,
    Kernels,
    MiB,
    SnapShotCallBack,
    acl,
    attempt,
    backup,
    code,
    create,
    export,
    lock,
    mapped,
    pattern,
    read,
    restore,
    say,
    unlock,
    use,
    write,
)

HUGE1G_ONLY = 6  # aclrtMemMallocPolicy
SHOWN = 4096  # bytes at both ends of what is large


class Program:
    def __init__(self) -> None:
        use(0)
        self.stream = int(acl.aclrtCreateStream())
        self.held: dict[int, tuple[int, int]] = {}  # address -> bytes, seed
        self.kernels = Kernels()
        self.stages: list[int] = []  # devices that callbacks were called for

    # ---- memory -----------------------------------------------------------------------------------------------

    def fill(self, address: int, size: int) -> str:
        seed = len(self.held) * 37 + 11
        for at in sorted({0, size - min(size, SHOWN)}):
            write(address + at, pattern(SHOWN, seed)[: min(size, SHOWN)])
        self.held[address] = size, seed
        return "ok"

    def alloc(self, count: int, size: int, policy: int = 0) -> str:
        for _ in range(count):
            self.fill(int(acl.aclrtMalloc(size, policy)), size)
        return "ok"

    def huge1g(self) -> str:
        return self.alloc(1, MiB, HUGE1G_ONLY)

    def handles(self, count: int, attribute: int = HBM_HUGE) -> str:
        """Physical memory of its own, mapped."""
        size = 1 << 30 if attribute == HBM_HUGE1G else 2 * MiB
        for _ in range(count):
            self.fill(mapped(create(size, attribute=attribute), size), size)
        return "ok"

    def unmapped(self, count: int) -> str:
        """Physical memory that is mapped nowhere."""
        for _ in range(count):
            create(2 * MiB)
        return "ok"

    def free_some(self, step: int) -> str:
        for address in list(self.held)[::step]:
            if attempt("aclrtFree", address)[0] == 0:
                del self.held[address]
        return "ok"

    def shared(self) -> str:
        """A handle that leaves for other processes."""
        return str(export(create(2 * MiB)))

    def digest(self) -> str:
        acl.aclrtSynchronizeDevice()
        state = hashlib.sha256()
        for address, (size, seed) in self.held.items():
            for at in sorted({0, size - min(size, SHOWN)}):
                found = read(address + at, min(size, SHOWN))
                if found != pattern(SHOWN, seed)[: len(found)]:
                    return f"wrong: {size} bytes at {address:#x}"
                state.update(found)
        return f"{len(self.held)} held, digest {state.hexdigest()}"

    # ---- work and snapshots -----------------------------------------------------------------------------------

    def add(self, number: int) -> str:
        """A kernel over the first words of everything, and back again: what is held stays what it is."""
        for address in self.held:
            for value in (number, 2**64 - number):
                self.kernels.launch("add", address, 64, value, stream=self.stream)
        acl.aclrtSynchronizeStream(self.stream)
        return "ok"

    def snapshot(self) -> str:
        """Of itself, as a program may."""
        lock(), backup(), restore(), unlock()
        return "ok"

    def callbacks(self) -> str:
        """At every stage of a snapshot of this process, whoever makes it; they may ask, and not wait."""
        self.called = SnapShotCallBack(self.ask_the_runtime)
        for stage in range(LOCK_PRE, UNLOCK_POST + 1):
            acl.aclrtSnapShotCallbackRegister(stage, self.called, None)
        return "ok"

    def ask_the_runtime(self, device: int, _argument: object) -> int:
        attempt("aclrtGetDevice")
        acl.aclrtSynchronizeDevice()
        self.stages.append(device)
        return 0

    def called_back(self) -> str:
        return str(len(self.stages))

    def locked(self) -> str:
        lock()
        return "ok"

    def refused(self) -> str:
        """Codes of calls that a program gets bare as well."""
        address = next(iter(self.held))
        calls = (("aclrtUnmapMem", address), ("aclrtFree", address + 1), ("aclrtFreePhysical", 0x67630300000FFFFF))
        return " ".join(str(code(name, value)) for name, value in calls)

    def address(self) -> str:
        return " ".join(hex(address) for address in self.held)


def main() -> None:
    program = Program()
    words: dict[str, Callable[..., str]] = {"?": program.digest, "digest": program.digest, "free": program.free_some}
    names = ("alloc", "huge1g", "handles", "unmapped", "shared", "add", "refused", "address")
    names += ("snapshot", "callbacks", "called_back", "locked")
    words |= {name: getattr(program, name) for name in names}
    say("ready")
    for line in sys.stdin:
        word, *numbers = line.split()
        say(words[word](*map(int, numbers)))


if __name__ == "__main__":
    ctypes.CDLL(None)  # the program's own scope, as a C program has it
    main()
