"""What the design leans on and only hardware can say: collected, not judged (`ok` means that it could be)."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver

UVM = "/dev/nvidia-uvm"

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
    }


def exported_descriptor() -> dict[str, Any]:
    """What kind of file an exported handle is."""
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
