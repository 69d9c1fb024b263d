"""The dialogue of `told.py` on Ascend's runtime, and what only a test of Ascend's asks for."""

import ctypes
import os

from acl_device import AclDevice, create, mapped
from acl_runtime import (
    EVERYBODY,
    HBM_HUGE1G,
    HUGE1G_ONLY,
    LOCK_PRE,
    UNLOCK_POST,
    SnapShotCallBack,
    acl,
    attempt,
)
from told import MIB, serve
from told import Program as Told


class Program(Told):
    device: AclDevice

    def __init__(self) -> None:
        super().__init__(AclDevice())
        self.stream = self.device.stream()
        self.launch_add = self.device.adder(os.environ["GCR_SIM_KERNELS"])
        self.stages: list[int] = []  # devices that callbacks were called for

    # ---- memory -----------------------------------------------------------------------------------------------

    def huge1g(self) -> str:
        self.fill(self.device.allocate(MIB, HUGE1G_ONLY), MIB)
        return "ok"

    def gigabyte(self) -> str:
        """Physical memory of its own in pages of 1 GiB."""
        self.fill(mapped(create(1 << 30, attribute=HBM_HUGE1G), 1 << 30), 1 << 30)
        return "ok"

    def unmapped(self, count: int) -> str:
        """Physical memory that is mapped nowhere."""
        for _ in range(count):
            create(2 * MIB)
        return "ok"

    def free(self, address: int) -> bool:
        return attempt("aclrtFree", address)[0] == 0  # what it mapped itself stays

    def shared(self) -> str:
        """A handle that leaves for other processes."""
        return str(acl.aclrtMemExportToShareableHandle(create(2 * MIB), 0, EVERYBODY))

    def settle(self) -> None:
        acl.aclrtSynchronizeDevice()

    # ---- work and snapshots -----------------------------------------------------------------------------------

    def add(self, number: int) -> str:
        """A kernel over the first words of everything, and back again: what is held stays what it is."""
        for address in self.held:
            for value in (number, 2**64 - number):
                self.launch_add(self.stream, address, 64, value)
        acl.aclrtSynchronizeStream(self.stream)
        return "ok"

    def snapshot(self) -> str:
        """Makes a snapshot of this process itself, as a program may."""
        self.locked()
        acl.aclrtSnapShotProcessBackup(os.getpid(), None)
        acl.aclrtSnapShotProcessRestore(os.getpid(), None)
        acl.aclrtSnapShotProcessUnlock(os.getpid(), None)
        return "ok"

    def callbacks(self) -> str:
        """Registers callbacks for every stage of a snapshot of this process; they may ask the runtime, not wait."""
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
        acl.aclrtSnapShotProcessLock(os.getpid(), None)
        return "ok"

    def refused(self) -> str:
        """Codes of calls that a program gets bare as well."""
        address = next(iter(self.held))
        calls = (("aclrtUnmapMem", address), ("aclrtFree", address + 1), ("aclrtFreePhysical", 0x67630300000FFFFF))
        return " ".join(str(attempt(name, value)[0]) for name, value in calls)


if __name__ == "__main__":
    ctypes.CDLL(None)  # the program's own scope, as a C program has it
    serve(Program())
