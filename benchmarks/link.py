"""The links themselves: plain copies each way between pinned host memory and devices, one alone and all at once."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from cuda.bindings import driver

BYTES = 4 << 30
REPEATS = 7
DOWN, UP = "device_to_host", "host_to_device"


def _check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise SystemExit(f"benchmark: {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


class Link:
    """A device with a stream, and with as much pinned host memory as device memory. `close` lets go of all of it."""

    def __init__(self, ordinal: int, size: int) -> None:
        self._device, self._size = _check(driver.cuDeviceGet(ordinal)), size
        self._context = _check(driver.cuDevicePrimaryCtxRetain(self._device))
        self.enter()
        self._host, self._memory = _check(driver.cuMemHostAlloc(size, 0)), _check(driver.cuMemAlloc(size))
        self._stream = _check(driver.cuStreamCreate(1))
        self.begin(UP)  # touches both once
        self.wait()

    def enter(self) -> None:
        _check(driver.cuCtxSetCurrent(self._context))

    def begin(self, way: str) -> None:
        """Begins a copy of all bytes; this device's context must be the current one."""
        if way == DOWN:
            _check(driver.cuMemcpyDtoHAsync(self._host, self._memory, self._size, self._stream))
        else:
            _check(driver.cuMemcpyHtoDAsync(self._memory, self._host, self._size, self._stream))

    def wait(self) -> None:
        _check(driver.cuStreamSynchronize(self._stream))

    def seconds(self, way: str) -> float:
        """Returns the time of one copy by the device's clock."""
        self.enter()
        begin, end = _check(driver.cuEventCreate(0)), _check(driver.cuEventCreate(0))
        _check(driver.cuEventRecord(begin, self._stream))
        self.begin(way)
        _check(driver.cuEventRecord(end, self._stream))
        _check(driver.cuEventSynchronize(end))
        return float(_check(driver.cuEventElapsedTime(begin, end))) / 1000.0

    def close(self) -> None:
        self.enter()
        _check(driver.cuStreamDestroy(self._stream))
        _check(driver.cuMemFreeHost(self._host))
        _check(driver.cuMemFree(self._memory))
        _check(driver.cuDevicePrimaryCtxRelease(self._device))


def measure(size: int = BYTES, repeats: int = REPEATS) -> dict[str, Any]:
    """Returns the median bytes per second each way on the first device, by its clock; copies are of `size` bytes."""
    _check(driver.cuInit(0))
    with closing(Link(0, size)) as link:
        found = {way: [size / link.seconds(way) for _ in range(repeats)] for way in (DOWN, UP)}
    return {"bytes": size, **_medians(found), **{f"all_{way}": rates for way, rates in found.items()}}


def at_once(size: int = BYTES, repeats: int = REPEATS) -> dict[str, Any]:
    """Returns the median bytes per second each way, of all devices together and of each alone, by the host's clock."""
    _check(driver.cuInit(0))
    count = _check(driver.cuDeviceGetCount())
    with ExitStack() as stack:
        links = [stack.enter_context(closing(Link(number, size))) for number in range(count)]
        alone = [_medians(_rates(lambda way, link=link: _seconds([link], way), size, repeats)) for link in links]
        together = _medians(_rates(lambda way: _seconds(links, way), size * count, repeats))
    return {"bytes": size, "devices": count, "alone": alone, **together}


def _rates(seconds: Callable[[str], float], size: int, repeats: int) -> dict[str, list[float]]:
    return {way: [size / seconds(way) for _ in range(repeats)] for way in (DOWN, UP)}


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {f"{way}_bytes_per_s": statistics.median(rates) for way, rates in found.items()}


def _seconds(links: Sequence[Link], way: str) -> float:
    began = time.perf_counter()
    for link in links:
        link.enter()
        link.begin(way)
    for link in links:
        link.enter()
        link.wait()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(at_once(*map(int, sys.argv[1:]))))
