"""Facts that the design rests on and only hardware can tell: collected, not judged (`ok`: it could be collected)."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from gcr_nvidia import devices

HOLDER = """
import sys, torch
x = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
pinned = torch.ones(1 << 28, dtype=torch.uint8, pin_memory=True)
torch.cuda.synchronize(); print("ready", flush=True); sys.stdin.read()
"""
MANAGED = """
import sys
from cuda.bindings import driver as d
d.cuInit(0); c = d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1]; d.cuCtxSetCurrent(c)
p = d.cuMemAllocManaged(1 << 30, 1)[1]; d.cuMemsetD8(p, 1, 1 << 30); d.cuCtxSynchronize()
print("ready", flush=True); sys.stdin.read()
"""

SHARER = """
import os, socket, sys
from cuda.bindings import driver as d
SIZE = 1 << 30
POSIX = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
def check(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) > 1 else None
check(d.cuInit(0)); check(d.cuCtxSetCurrent(check(d.cuDevicePrimaryCtxRetain(check(d.cuDeviceGet(0))))))
prop, access = d.CUmemAllocationProp(), d.CUmemAccessDesc()
prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = access.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.requestedHandleTypes, access.flags = POSIX, d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
us, held = socket.socket(fileno=int(sys.argv[1])), []
def hold(handle):
    address = check(d.cuMemAddressReserve(SIZE, 0, 0, 0))
    check(d.cuMemMap(address, SIZE, 0, handle, 0)); check(d.cuMemSetAccess(address, SIZE, [access], 1))
    check(d.cuMemsetD8(address, 1, SIZE)); check(d.cuCtxSynchronize())
    held.append((address, handle))
us.send(b"ready")
while True:
    word, fds, _, _ = socket.recv_fds(us, 16, 1)
    if word == b"make":
        handle = check(d.cuMemCreate(SIZE, prop, 0)); hold(handle)
        fd = int(check(d.cuMemExportToShareableHandle(handle, POSIX, 0)))
        socket.send_fds(us, [b"made"], [fd]); os.close(fd)
        continue
    if word == b"take":
        hold(check(d.cuMemImportFromShareableHandle(fds[0], POSIX))); os.close(fds[0])
    elif word == b"drop":
        while held:
            address, handle = held.pop()
            check(d.cuMemUnmap(address, SIZE)); check(d.cuMemRelease(handle)); check(d.cuMemAddressFree(address, SIZE))
    else:
        break
    us.send(b"done")
"""


def collect() -> dict[str, Any]:
    driver.cuInit(0)
    return {
        "ok": True,
        "exported_descriptor": exported_descriptor(),
        "state_of_a_process_without_cuda": _state_of_sleeper(),
        "state_of_no_process": state(_gone()),
        "state_of_init": state(1),
        "plain_process": of_process(HOLDER),
        "managed_process": of_process(MANAGED),
        "who_is_counted": who_is_counted(),
    }


def exported_descriptor() -> dict[str, Any]:
    """Returns the kind of file of an exported handle."""
    context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1]
    driver.cuCtxSetCurrent(context)
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    posix = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    prop.requestedHandleTypes = posix
    handle = driver.cuMemCreate(2 << 20, prop, 0)[1]
    fd = int(driver.cuMemExportToShareableHandle(handle, posix, 0)[1])
    mode = os.fstat(fd).st_mode
    found = {"type": oct(stat.S_IFMT(mode)), "link": str(Path(f"/proc/self/fd/{fd}").readlink())}
    stranger = os.open("/dev/null", os.O_RDWR)
    refused = driver.cuMemImportFromShareableHandle(stranger, posix)[0].name
    os.close(fd)
    os.close(stranger)
    driver.cuMemRelease(handle)
    return {**found, "import_of_dev_null": refused}


def state(pid: int) -> str:
    result = driver.cuCheckpointProcessGetState(pid)
    return f"{result[0].name} {result[1] if len(result) > 1 else ''}"


def _state_of_sleeper() -> str:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        return state(sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait()


def _gone() -> int:
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def of_process(code: str) -> dict[str, Any]:
    """State, descriptors and driver mappings of a program that holds device memory."""
    program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdin is not None and program.stdout is not None
    program.stdout.readline()
    links = sorted({str(link.readlink()) for link in Path(f"/proc/{program.pid}/fd").iterdir()})
    found = {
        "state": state(program.pid),
        "nvidia_descriptors": [link for link in links if "nvidia" in link],
        "mapped_bytes": mapped(program.pid),
    }
    program.stdin.close()
    program.wait(60)
    return found


def mapped(pid: int) -> dict[str, int]:
    """Bytes mapped of each device file."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(("/dev/nvidia", "/dev/shm", "/dev/zero")):
            start, end = (int(part, 16) for part in fields[0].split("-"))
            sizes[fields[5]] = sizes.get(fields[5], 0) + end - start
    return sizes


class Sharer:
    """A process that makes, takes and drops 1 GiB of device memory."""

    def __init__(self) -> None:
        self._us, theirs = socket.socketpair()
        self._us.settimeout(60)
        words = [sys.executable, "-c", SHARER, str(theirs.fileno())]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        theirs.close()
        assert self._us.recv(16) == b"ready"

    def make(self) -> int:
        self._us.send(b"make")
        return socket.recv_fds(self._us, 16, 1)[1][0]

    def take(self, fd: int) -> None:
        socket.send_fds(self._us, [b"take"], [fd])
        assert self._us.recv(16) == b"done"

    def drop(self) -> None:
        self._us.send(b"drop")
        assert self._us.recv(16) == b"done"

    def end(self) -> None:
        self._us.close()
        self.process.wait(60)


def who_is_counted() -> dict[str, Any]:
    """Returns the MiB that the device counts for the maker and the importer of memory, step by step."""
    one, other = Sharer(), Sharer()
    found: dict[str, Any] = {}

    def count(moment: str, *sharers: Sharer) -> None:
        memory = devices.memory(devices.handles()[0])
        by_pid = [memory.by_pid.get(sharer.process.pid, 0) >> 20 for sharer in sharers or (one, other)]
        found[moment] = {"by_process": by_pid, "device": memory.used >> 20}

    count("contexts alone")
    fd = one.make()
    count("the first made it")
    other.take(fd)
    count("the second imported it")
    one.drop()
    count("the first let go")
    one.take(fd)
    count("the first imported it again")
    other.drop()
    count("the second let go")
    other.end()
    third = Sharer()
    count("the second is gone, a third is there", one, third)
    third.take(fd)
    count("the third imported it", one, third)
    one.drop()
    count("the first let go of its import", one, third)
    third.drop()
    os.close(fd)
    count("nobody has it", one, third)
    one.end()
    third.end()
    return found
