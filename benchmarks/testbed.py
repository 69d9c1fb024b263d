"""What the figures were measured on, and whether they mean anything there."""

import os
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gcr import config
from gcr.memory.hostmemory import available_host_bytes

GIB = 1 << 30
HUGEPAGES = Path("/proc/sys/vm/nr_hugepages")
COMPACT = Path("/proc/sys/vm/compact_memory")
HUGEPAGE_BYTES = 2 << 20
WARM_CHUNK = 256 << 20
SMALLER_GIB = 16.0
OF_ARENA = 1.1  # bytes of the arena for each byte of a program: its context leaves as well


class Unsuitable(SystemExit):
    """This machine cannot give these figures."""


def facts() -> dict[str, Any]:
    """First of all: kernel, driver, and whether the driver has the checkpoint calls. Raises Unsuitable."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as absent:
        raise Unsuitable(f"benchmark: kernel {platform.release()}: no NVIDIA device: {absent}") from absent
    name = pynvml.nvmlDeviceGetName(handle)
    if "simulated" in name.lower():
        raise Unsuitable("benchmark: the device is simulated; nothing measured on it is a figure")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "kernel": platform.release(),
        "device": name,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "checkpoint_api": checkpoint_api(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "nr_hugepages": int(HUGEPAGES.read_text()),
        "link": _link(pynvml, handle),
    }


def _link(nvml: Any, handle: Any) -> str:
    try:
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return f"PCIe {generation} x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
    except nvml.NVMLError as unknown:
        return f"unknown: {unknown}"


def checkpoint_api() -> str:
    """What cuCheckpointProcessGetState says of ourselves. Raises Unsuitable when the driver has no such call."""
    from cuda.bindings import driver

    driver.cuInit(0)
    try:
        result = driver.cuCheckpointProcessGetState(os.getpid())
    except RuntimeError as missing:
        raise Unsuitable(f"benchmark: the driver has no cuCheckpointProcessGetState: {missing}") from missing
    return f"cuCheckpointProcessGetState: {result[0].name}"


def used_bytes() -> int:
    """In use on device 0, by its own count."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def free_bytes() -> int:
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free)


def bytes_of(pid: int) -> int:
    """In use by one process on device 0; 0 when the device does not name it."""
    import pynvml

    pynvml.nvmlInit()
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return sum(int(each.usedGpuMemory or 0) for each in running if each.pid == pid)


def warm_host_memory(gib: int) -> None:
    """Touch memory once and give it back: a virtual machine gets its pages from the host at first touch only."""
    import ctypes
    import mmap

    def touch(_number: int) -> None:
        chunk = mmap.mmap(-1, WARM_CHUNK)
        view = (ctypes.c_char * WARM_CHUNK).from_buffer(chunk)
        ctypes.memset(ctypes.addressof(view), 1, WARM_CHUNK)  # releases the GIL
        held.append((view, chunk))

    held: list[Any] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(touch, range(gib * GIB // WARM_CHUNK)))


def gib_of_two(wanted: float) -> float:
    """Returns the GiB of each of two programs that are off the device at once: SMALLER_GIB at most where the arena's
    limit has no room for two as large as wanted.
    """
    limit = available_host_bytes() * config.load().arena_share
    return wanted if 2 * OF_ARENA * wanted * GIB <= limit else min(wanted, SMALLER_GIB)


@contextmanager
def hugepages(size: int) -> Iterator[int]:
    """Reserve huge pages for `size` bytes and put the number back; yields how many bytes there really are.

    Raises Unsuitable where they cannot be had: for want of permission, or of memory in one piece.
    """
    before = HUGEPAGES.read_text().strip()
    try:
        yield _reserve_hugepages(-(-size // HUGEPAGE_BYTES))
    finally:
        with suppress(OSError):  # what could not be written needs no putting back
            HUGEPAGES.write_text(before)


def _reserve_hugepages(wanted: int) -> int:
    try:
        for _attempt in range(2):
            HUGEPAGES.write_text(str(wanted))
            if (got := int(HUGEPAGES.read_text())) >= wanted:
                return got * HUGEPAGE_BYTES
            COMPACT.write_text("1")
    except OSError as refused:
        raise Unsuitable(f"benchmark: huge pages cannot be reserved here: {refused}") from refused
    raise Unsuitable(f"benchmark: {got} of {wanted} huge pages could be reserved")
