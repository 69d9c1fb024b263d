"""The link itself: one plain copy each way between pinned host memory and the device."""

import statistics
from typing import Any

from cuda.bindings import driver

BYTES = 4 << 30
REPEATS = 7


def _check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise SystemExit(f"benchmark: {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def measure() -> dict[str, Any]:
    """Median bytes per second each way, of copies of 4 GiB, on the device's clock."""
    _check(driver.cuInit(0))
    device = _check(driver.cuDeviceGet(0))
    _check(driver.cuCtxSetCurrent(_check(driver.cuDevicePrimaryCtxRetain(device))))
    host, memory = _check(driver.cuMemHostAlloc(BYTES, 0)), _check(driver.cuMemAlloc(BYTES))
    stream = _check(driver.cuStreamCreate(1))
    _check(driver.cuMemcpyHtoDAsync(memory, host, BYTES, stream))  # touches both once
    down = [_rate(stream, driver.cuMemcpyDtoHAsync, host, memory) for _ in range(REPEATS)]
    up = [_rate(stream, driver.cuMemcpyHtoDAsync, memory, host) for _ in range(REPEATS)]
    _check(driver.cuMemFreeHost(host))
    _check(driver.cuMemFree(memory))
    _check(driver.cuDevicePrimaryCtxRelease(device))
    return {
        "bytes": BYTES,
        "device_to_host_bytes_per_s": statistics.median(down),
        "host_to_device_bytes_per_s": statistics.median(up),
        "all_device_to_host": down,
        "all_host_to_device": up,
    }


def _rate(stream: Any, copy: Any, target: Any, source: Any) -> float:
    begin, end = _check(driver.cuEventCreate(0)), _check(driver.cuEventCreate(0))
    _check(driver.cuEventRecord(begin, stream))
    _check(copy(target, source, BYTES, stream))
    _check(driver.cuEventRecord(end, stream))
    _check(driver.cuEventSynchronize(end))
    return BYTES / (float(_check(driver.cuEventElapsedTime(begin, end))) / 1000.0)
