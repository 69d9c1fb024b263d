"""An NVIDIA device, by cuda-python."""

import ctypes
from typing import Any

try:
    from cuda.bindings import driver
except ImportError as missing:
    raise SystemExit(f"{missing}; install gcr's extra [nvidia]") from None

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise SystemExit(f"the driver returned {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def open_device() -> None:
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))


def allocate(size: int) -> int | None:
    error, address = driver.cuMemAlloc(size)
    return None if int(error) == _OUT_OF_MEMORY else int(check((error, address)))


def free(address: int) -> None:
    check(driver.cuMemFree(address))


def fill(address: int, byte: int, size: int) -> None:
    check(driver.cuMemsetD8(address, byte, size))


def copy(to: int, source: int, size: int) -> None:
    check(driver.cuMemcpyDtoD(to, source, size))


def download(address: int, size: int) -> bytes:
    data = ctypes.create_string_buffer(size)
    check(driver.cuMemcpyDtoH(ctypes.addressof(data), address, size))
    return data.raw
