"""The hash kernel on an AMD device: its source ships with gcr and is compiled by hiprtc, ROCm's own, when it is loaded.

Without hiprtc device memory is hashed on the host. A simulated device runs the source as it was compiled for the host.
"""

import ctypes
import importlib
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcr.errors import BackendMissing, DriverError
from gcr.native import NativeMissing, sim_dir
from gcr.vmm import DeviceFull, NoHashKernel
from gcr_amd.runtime import NOT_READY, OUT_OF_MEMORY, SUCCESS, attempt, failure, hip

NAME = b"gcr_hash_chunks"
_NON_BLOCKING = 1  # hipStreamNonBlocking
_OPTIONS = (b"-O3", b"-std=c++17")
_KINDS = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)


class HipHashKernel:
    """Implements gcr.vmm.HashKernel on the current device."""

    def __init__(self, simulated: bool) -> None:
        """Raises NoHashKernel."""
        try:
            self._image = simulated_image() if simulated else compiled()  # the runtime may read it later
            self._module = hip.hipModuleLoadData(self._image)
            self._function = hip.hipModuleGetFunction(self._module, NAME)
        except (DriverError, BackendMissing, OSError, NativeMissing) as lacking:
            raise NoHashKernel(str(lacking)) from lacking
        self._stream: Any = hip.hipStreamCreateWithFlags(_NON_BLOCKING)

    def allocate(self, size: int) -> int:
        result, address = attempt("hipMalloc", size)
        if result == OUT_OF_MEMORY:
            raise DeviceFull
        if result != SUCCESS:
            raise failure("hipMalloc", result)
        return int(address)

    def free(self, address: int) -> None:
        hip.hipFree(address)

    def upload(self, address: int, data: bytes) -> None:
        hip.hipMemcpyHtoDAsync(address, data, len(data), self._stream)
        hip.hipStreamSynchronize(self._stream)

    def launch(self, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        values = [kind(value) for kind, value in zip(_KINDS, arguments, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (blocks, 1, 1, threads, 1, 1)
        hip.hipModuleLaunchKernel(self._function, *shape, 0, self._stream, ctypes.addressof(pointers), None)

    def idle(self) -> bool:
        result, _ = attempt("hipStreamQuery", self._stream)
        if result not in (SUCCESS, NOT_READY):
            raise failure("hipStreamQuery", result)
        return result == SUCCESS

    def download(self, address: int, size: int) -> bytes:
        data = bytearray(size)
        hip.hipMemcpyDtoHAsync(data, address, size, self._stream)
        hip.hipStreamSynchronize(self._stream)
        return bytes(data)

    def close(self) -> None:
        hip.hipStreamDestroy(self._stream)
        hip.hipModuleUnload(self._module)


def simulated_image() -> bytes:
    """Raises OSError, NativeMissing."""
    return Path(sim_dir("amd"), "hash.so").read_bytes()


def compiled() -> bytearray:
    """A code object for the current device. Raises BackendMissing without hiprtc, DriverError with its log."""
    source = importlib.resources.files("gcr.hashing").joinpath("chunk_hash.h").read_bytes()
    program = _rtc("hiprtcCreateProgram", source, b"chunk_hash.h", 0, None, None)
    try:
        _rtc("hiprtcCompileProgram", program, len(_OPTIONS), list(_OPTIONS))
        code = bytearray(_rtc("hiprtcGetCodeSize", program))
        _rtc("hiprtcGetCode", program, code)
    except DriverError as failed:
        raise DriverError(f"{failed}: {_log_of(program)}") from failed
    finally:
        _rtc("hiprtcDestroyProgram", program.createRef())
    return code


def evidence(simulated: bool) -> str:
    """Raises BackendMissing."""
    if simulated:
        return "SIMULATED: the kernel's source, compiled for the host"
    return "compiled by hiprtc {}.{} for the device".format(*_rtc("hiprtcVersion"))


def _log_of(program: Any) -> str:
    log = bytearray(_rtc("hiprtcGetProgramLogSize", program))
    _rtc("hiprtcGetProgramLog", program, log)
    return log.rstrip(b"\0").decode(errors="replace").strip()


def _rtc(call: str, *arguments: object) -> Any:
    """A call of hiprtc's: its value (None, one value, or a tuple)."""
    try:
        result, *values = getattr(importlib.import_module("hip").hiprtc, call)(*arguments)
    except (ImportError, AttributeError, RuntimeError) as missing:
        raise BackendMissing(f"{call}: {missing}", hint="install ROCm's hiprtc (libhiprtc.so)") from missing
    if int(result) != SUCCESS:
        raise DriverError(f"{call}: {result.name} ({int(result)})")
    return values[0] if len(values) == 1 else tuple(values) or None
