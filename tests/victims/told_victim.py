"""The dialogue of `told.py` on CUDA's driver API, and what only a test of NVIDIA's asks for.

Lines that may have to wait for a closed gate run on threads of their own, so that it can always be spoken to.
Tests start hundreds: what few of them need is imported where it is needed.
"""

import ctypes
import os
import stat
import sys
import threading
import time
from collections.abc import Callable

from cuda_device import HERE, CudaDevice, launch, properties
from cuda_driver import (
    ATTACH_GLOBAL,
    FABRIC,
    HOST_NUMA,
    POSIX,
    READ_WRITE,
    AccessDesc,
    HostFn,
    Location,
    MulticastObjectProp,
    driver,
)
from lending import Lending
from told import MIB, serve

HOME = __file__.rpartition("/")[0] or "."
LENDER = b"\0gcr-lend-"  # its socket


class Program(Lending):
    def __init__(self) -> None:
        super().__init__(CudaDevice())
        self.stream, self.other = self.device.stream(), self.device.stream()
        self.flag = self.device.allocate(4096)
        driver.cuMemsetD32_v2(self.flag, 0, 1)
        self.door = threading.Event()
        self.callback = HostFn(lambda _data: self.wait_at_the_door())
        self.thread: threading.Thread | None = None

    def wait_at_the_door(self) -> None:
        self.door.wait(60)

    def settle(self) -> None:
        self.device.read(self.flag, 4)  # waits while a driver has us suspended; r580 faults in cuStreamSynchronize then
        driver.cuStreamSynchronize(self.other)

    def synchronise(self) -> str:
        driver.cuStreamSynchronize(self.stream)
        return "ok"

    # ---- what a driver would never give back ------------------------------------------------------------------

    def managed(self) -> str:
        driver.cuMemAllocManaged(MIB, ATTACH_GLOBAL)
        return "ok"

    def shareable(self) -> str:
        prop = properties()
        handle = driver.cuMemCreate(self.device.granule(), prop, 0)
        descriptor = ctypes.c_int()
        driver.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, POSIX, 0)
        return str(descriptor.value)

    def import_from(self, pid: str, fd: str) -> str:
        """Imports a handle from a descriptor of another process."""
        own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
        self.kept.append(driver.cuMemImportFromShareableHandle(own, POSIX))
        return "ok"

    def for_the_fabric(self) -> str:
        """Memory that could be exported to other nodes, and is not."""
        prop, size = properties(FABRIC), self.device.granule()
        base = int(driver.cuMemAddressReserve(size, 0, 0, 0))
        self.kept.append(driver.cuMemCreate(size, prop, 0))
        driver.cuMemMap(base, size, 0, self.kept[-1], 0)
        driver.cuMemSetAccess(base, size, AccessDesc(HERE, READ_WRITE), 1)
        self.fill(base, size)
        return "ok"

    def fabric_export(self) -> str:
        """Exports the latest memory to other nodes; the number the driver answers."""
        name = ctypes.create_string_buffer(64)
        return str(driver.attempt("cuMemExportToShareableHandle", name, self.kept[-1], FABRIC, 0)[0])

    def host_numa(self) -> str:
        """Physical memory on the host."""
        prop = properties()
        prop.location = Location(HOST_NUMA, 0)
        self.kept.append(driver.cuMemCreate(self.device.granule(), prop, 0))
        return "ok"

    def multicast(self) -> str:
        """The number the driver answers; 0 where it has multicast."""
        return str(driver.attempt("cuMulticastCreate", MulticastObjectProp(1, 2 * MIB, POSIX))[0])

    # ---- work that waits for something ------------------------------------------------------------------------

    def persistent(self, kernels: str) -> str:
        """A kernel that spins until the flag is 1; only `release` ends it."""
        from pathlib import Path

        module = driver.cuModuleLoadData(Path(kernels).read_bytes())
        function = driver.cuModuleGetFunction(module, b"spin_until")
        launch(function, 1, 1, self.stream, ctypes.c_uint64(self.flag), ctypes.c_uint32(1))
        return hex(int(self.stream))

    def wait_value(self) -> str:
        driver.cuStreamWaitValue32_v2(self.stream, self.flag, 1, 1)  # until equal
        return "ok"

    def host_callback(self) -> str:
        """A host function that waits until another thread has made a driver call."""
        self.door.clear()
        driver.cuLaunchHostFunc(self.stream, self.callback, None)
        return "ok"

    def release(self) -> str:
        """Sets the flag on a thread of its own, which a closed gate parks."""
        return self.begin(lambda: driver.cuMemsetD32Async(self.flag, 1, 1, self.other))

    def open_door(self) -> str:
        """Likewise; the door opens once the driver's call has returned."""

        def work() -> None:
            self.alloc(1, 4096)
            self.door.set()

        return self.begin(work)

    def open_door_and_release(self) -> str:
        """First the one, then, after its call returned, the other."""

        def work() -> None:
            self.alloc(1, 4096)
            self.door.set()
            driver.cuMemsetD32Async(self.flag, 1, 1, self.other)

        return self.begin(work)

    def begin(self, work: Callable[[], object]) -> str:
        def live() -> None:
            self.device.enter()
            work()

        self.thread = threading.Thread(target=live)
        self.thread.start()
        return "ok"

    def done(self) -> str:
        """Says whether that thread has ended, and then the stream too."""
        assert self.thread
        self.thread.join(0.05)
        if self.thread.is_alive():
            return "waiting"
        driver.cuStreamSynchronize(self.stream)
        return "done"

    # ---- what programs do to themselves -----------------------------------------------------------------------

    def child(self, touches: str) -> str:
        """A forked child that lives for ten seconds; "gpu": with device memory of its own after an exec."""
        pid = os.fork()
        if pid == 0:
            if touches == "gpu":
                null = os.open("/dev/null", os.O_RDWR)
                os.dup2(null, 0), os.dup2(null, 1)
                os.chdir(HOME)
                script = "import told_victim as t; p = t.Program(); p.alloc(3, 4096); t.time.sleep(10)"
                os.execv(sys.executable, [sys.executable, "-c", script])
            time.sleep(10)
            os._exit(0)
        return str(pid)

    def close_all(self) -> str:
        """Every connection that would not be there without gcr, and /dev/null in its place. Says how many."""
        return self.replaced([fd for fd in range(3, 2048) if is_gcrs(fd)])

    def close_copies(self) -> str:
        """The same, and the tables and segments of a copy that the agent keeps. Says how many of these."""
        kept = [fd for fd in range(3, 2048) if is_of_copy(fd)]
        self.close_all()
        return self.replaced(kept)

    def replaced(self, ours: list[int]) -> str:
        null = os.open("/dev/null", os.O_RDWR)
        for fd in ours:
            os.dup2(null, fd)
        os.close(null)
        return str(len(ours))

    def free_bytes(self) -> str:
        return str(driver.cuMemGetInfo_v2()[0])

    def eat_descriptors(self, left: int) -> str:
        """Opens until only so many are left. Says how many it took."""
        taken: list[int] = []
        try:
            while True:
                taken.append(os.dup(0))
        except OSError:
            for fd in taken[len(taken) - left :]:
                os.close(fd)
        return str(len(taken) - left)


def is_gcrs(fd: int) -> bool:
    """Returns True if a descriptor is the connection to the daemon, or the socket for borrowers of lent memory."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return False
        import socket

        with socket.socket(fileno=os.dup(fd)) as each:
            if each.family != socket.AF_UNIX:
                return False
            return os.fsencode(each.getsockname()).startswith(LENDER) or each.getpeername() == os.environ["GCR_SOCKET"]
    except OSError:
        return False


def is_of_copy(fd: int) -> bool:
    """Returns True if a descriptor is of a memory file that a worker has staged."""
    from pathlib import Path

    try:
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return False
    return name.startswith("/memfd:gcr-") and not name.startswith(("/memfd:gcr-sim", "/memfd:gcr-occupied"))


def main() -> None:
    program = Program()
    program.alloc(4, MIB)
    serve(program)


if __name__ == "__main__":
    main()
