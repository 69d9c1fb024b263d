"""The hash kernel on an NVIDIA device: PTX that ships with gcr, compiled by the driver when it is loaded.

A simulated device cannot run PTX. It gets the kernel's source as it was compiled for the host.
"""

import ctypes
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcr.errors import DriverError
from gcr.native import NativeMissing, sim_dir
from gcr.vmm import DeviceFull, NoHashKernel
from gcr_nvidia.driver import NOT_READY, OUT_OF_MEMORY, SUCCESS, attempt, cuda, enum, failure

NAME = b"gcr_hash_chunks"
OLDEST_CAPABILITY = 7  # the PTX's target
_KINDS = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)


class CudaHashKernel:
    """Implements gcr.vmm.HashKernel in the current context."""

    def __init__(self, simulated: bool) -> None:
        """Raises NoHashKernel."""
        try:
            self._module = cuda.cuModuleLoadData(image(simulated))
            self._function = cuda.cuModuleGetFunction(self._module, NAME)
        except (DriverError, OSError, NativeMissing) as lacking:
            raise NoHashKernel(str(lacking)) from lacking
        self.stream: Any = cuda.cuStreamCreate(enum("CUstream_flags", "CU_STREAM_NON_BLOCKING").value)

    def allocate(self, size: int) -> int:
        result, address = attempt("cuMemAlloc", size)
        if result == OUT_OF_MEMORY:
            raise DeviceFull
        if result != SUCCESS:
            raise failure("cuMemAlloc", result)
        return int(address)

    def free(self, address: int) -> None:
        cuda.cuMemFree(address)

    def upload(self, address: int, data: bytes) -> None:
        cuda.cuMemcpyHtoDAsync(address, data, len(data), self.stream)
        cuda.cuStreamSynchronize(self.stream)

    def launch(self, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        shape = (blocks, 1, 1, threads, 1, 1)
        cuda.cuLaunchKernel(self._function, *shape, 0, self.stream, (tuple(arguments), _KINDS), 0)

    def idle(self) -> bool:
        result, _ = attempt("cuStreamQuery", self.stream)
        if result not in (SUCCESS, NOT_READY):
            raise failure("cuStreamQuery", result)
        return result == SUCCESS

    def download(self, address: int, size: int) -> bytes:
        data = bytearray(size)
        cuda.cuMemcpyDtoHAsync(_address_of(data), address, size, self.stream)
        cuda.cuStreamSynchronize(self.stream)
        return bytes(data)

    def close(self) -> None:
        cuda.cuStreamDestroy(self.stream)
        cuda.cuModuleUnload(self._module)


def image(simulated: bool) -> bytes:
    """Returns the module that the driver loads. Raises OSError, NativeMissing."""
    if simulated:
        return Path(sim_dir("nvidia"), "hash.so").read_bytes()
    return importlib.resources.files("gcr.hashing").joinpath("chunk_hash.ptx").read_bytes() + b"\0"


def evidence(simulated: bool) -> str:
    if simulated:
        return "SIMULATED: the kernel's source, compiled for the host"
    return f"PTX for compute capability {OLDEST_CAPABILITY}.0 and later, compiled by the driver"


def _address_of(data: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
