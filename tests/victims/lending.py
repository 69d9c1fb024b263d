"""Words of a told program that lends device memory to other processes by the legacy calls for it, or borrows it."""

import hashlib
import signal
from typing import Any, Protocol

from device import Device
from told import Program, pattern

ONLY_FLAG = 1  # "lazily enable peer access": there is no other


class LendingDevice(Device, Protocol):
    """Blobs are 64 bytes; a code is the runtime's, 0 for success."""

    def lend(self, address: int) -> bytes: ...

    def borrow(self, blob: bytes, flags: int) -> tuple[int, int]:
        """A code, and where the memory is."""

    def give_back(self, address: int) -> int:
        """A code."""

    def try_to_free(self, address: int) -> int:
        """A code."""

    def range_of(self, address: int) -> tuple[int, int]:
        """Returns the begin and the bytes of the allocation that contains the address."""


class SharingDevice(LendingDevice, Protocol):
    """Besides, physical memory of the program's own, which leaves as a descriptor. Every call must succeed."""

    def make(self, size: int) -> Any:
        """Returns a handle of memory that can be exported."""

    def map(self, handle: Any, size: int) -> int:
        """Returns the address, where the memory can be read and written."""

    def unmap(self, address: int, size: int) -> None: ...

    def release(self, handle: Any) -> None: ...

    def exported(self, handle: Any) -> int:
        """Returns a descriptor."""

    def imported(self, descriptor: int) -> Any:
        """Returns a handle. The descriptor stays open."""


class Lending(Program):
    def __init__(self, device: LendingDevice) -> None:
        super().__init__(device)
        self.lending = device
        self.borrowed: list[int] = []

    # ---- the lender -------------------------------------------------------------------------------------------

    def lend(self, size: int, inside: int = 0) -> str:
        """A new allocation; the blob is asked for with an address so far into it."""
        self.alloc(1, size)
        return "x" + self.lending.lend(next(reversed(self.held)) + inside).hex()

    def lend_again(self) -> str:
        """The newest allocation."""
        return "x" + self.lending.lend(next(reversed(self.held))).hex()

    def wrote(self, seed: int) -> str:
        """The newest allocation is now as `write` leaves it."""
        address = next(reversed(self.held))
        self.held[address] = self.held[address][0], seed
        return self.digest()

    def drop_newest(self) -> str:
        address = next(reversed(self.held))
        del self.held[address]
        self.device.free(address)
        return "ok"

    # ---- the borrower -----------------------------------------------------------------------------------------

    def borrow(self, blob: str, flags: int = ONLY_FLAG) -> str:
        """Returns the number of the borrowed allocation, from 0, its bytes and their digest; or a code."""
        code, address = self.lending.borrow(bytes.fromhex(blob.removeprefix("x")), flags)
        if code:
            return f"code {code}"
        if address not in self.borrowed:
            self.borrowed.append(address)
        return self.look(self.borrowed.index(address))

    def look(self, index: int) -> str:
        base, size = self.lending.range_of(self.borrowed[index])
        inner, _ = self.lending.range_of(self.borrowed[index] + size - 1)
        found = hashlib.sha256(self.device.read(base, size)).hexdigest()
        return f"{index}: {base == inner == self.borrowed[index]} {size} bytes {found}"

    def write(self, index: int, seed: int) -> str:
        _, size = self.lending.range_of(self.borrowed[index])
        self.device.write(self.borrowed[index], pattern(size, seed))
        return "ok"

    def give_back(self, index: int) -> str:
        return f"code {self.lending.give_back(self.borrowed[index])}"

    def free_borrowed(self, index: int) -> str:
        """Tries to free borrowed memory by the plain call, which must refuse."""
        return f"code {self.lending.try_to_free(self.borrowed[index])}"

    def shake(self) -> str:
        """Sends a signal five thousand times a second from here on; its handler does nothing."""
        signal.signal(signal.SIGALRM, lambda _number, _frame: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        return "ok"

    def forget(self) -> str:
        """Forgets memory that was given back: another allocation may get its address."""
        self.borrowed.clear()
        return "ok"
