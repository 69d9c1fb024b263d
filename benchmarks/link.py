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


def check(result: tuple[Any, ...]) -> Any:
    """Returns what a driver call returned besides its error. An error ends the benchmark."""
    if int(result[0]):
        raise SystemExit(f"benchmark: {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


class Link:
    """A device with a stream, and with as much pinned host memory as device memory. `close` lets go of all of it."""

    def __init__(self, ordinal: int, size: int) -> None:
        self._device, self.size = check(driver.cuDeviceGet(ordinal)), size
        self._context = check(driver.cuDevicePrimaryCtxRetain(self._device))
        self.enter()
        self._host, self._memory = check(driver.cuMemHostAlloc(size, 0)), check(driver.cuMemAlloc(size))
        self.stream = check(driver.cuStreamCreate(1))
        self.begin(UP)  # touches both once
        self.wait()

    def enter(self) -> None:
        check(driver.cuCtxSetCurrent(self._context))

    def begin(self, way: str, at: int = 0, size: int | None = None) -> None:
        """Begins a copy of all bytes, or of `size` from `at` on; this device's context must be the current one."""
        host, memory, nbytes = int(self._host) + at, int(self._memory) + at, self.size if size is None else size
        if way == DOWN:
            check(driver.cuMemcpyDtoHAsync(host, memory, nbytes, self.stream))
        else:
            check(driver.cuMemcpyHtoDAsync(memory, host, nbytes, self.stream))

    def wait(self) -> None:
        check(driver.cuStreamSynchronize(self.stream))

    def seconds(self, way: str) -> float:
        """Returns the time of one copy by the device's clock."""
        self.enter()
        begin, end = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))
        check(driver.cuEventRecord(begin, self.stream))
        self.begin(way)
        check(driver.cuEventRecord(end, self.stream))
        check(driver.cuEventSynchronize(end))
        return float(check(driver.cuEventElapsedTime(begin, end))) / 1000.0

    def close(self) -> None:
        self.enter()
        check(driver.cuStreamDestroy(self.stream))
        check(driver.cuMemFreeHost(self._host))
        check(driver.cuMemFree(self._memory))
        check(driver.cuDevicePrimaryCtxRelease(self._device))


def measure(size: int = BYTES, repeats: int = REPEATS) -> dict[str, Any]:
    """Returns the median bytes per second each way on the first device, by its clock; copies are of `size` bytes."""
    check(driver.cuInit(0))
    with closing(Link(0, size)) as link:
        found = {way: [size / link.seconds(way) for _ in range(repeats)] for way in (DOWN, UP)}
    return {"bytes": size, **_medians(found), **{f"all_{way}": rates for way, rates in found.items()}}


def at_once(size: int = BYTES, repeats: int = REPEATS) -> dict[str, Any]:
    """Returns the median bytes per second each way, of all devices together and of each alone, by the host's clock."""
    check(driver.cuInit(0))
    count = check(driver.cuDeviceGetCount())
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
