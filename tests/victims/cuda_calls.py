"""cuda.bindings with every result checked, written without anything of gcr's: victims are the oracle."""

import ctypes
from typing import Any

from cuda.bindings import driver


def check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise SystemExit(f"victim: the driver returned {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def primary_context(ordinal: int = 0) -> Any:
    check(driver.cuInit(0))
    context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(ordinal))))
    check(driver.cuCtxSetCurrent(context))
    return context


def download(address: int, size: int) -> bytearray:
    """A synchronous copy to the host. A second copy, into bytes, would take ten times as long as the first."""
    host = bytearray(size)
    view = (ctypes.c_char * size).from_buffer(host)
    check(driver.cuMemcpyDtoH(ctypes.addressof(view), address, size))
    del view
    return host
