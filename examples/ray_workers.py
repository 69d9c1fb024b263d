"""Actors of Ray that know nothing of gcr, each with numbers in device memory. It prints their digests after each step.

    gcr run -d --name ray -- ray start --block --head …       # on each node: what uses a GPU there is the job `ray`
    gcr cluster up
    python examples/ray_workers.py --workers 2 --steps 1000
    gcr cluster checkpoint ray; gcr cluster restore ray       # meanwhile, on any node: all workers, at one cut

Needs cuda-python: pip install 'gpu-cr[nvidia,ray]'.
"""

import argparse
import hashlib
from array import array
from typing import Any

import ray


@ray.remote(num_gpus=1, scheduling_strategy="SPREAD")
class Worker:
    def __init__(self, seed: int, words: int) -> None:
        from cuda.bindings import driver

        self._driver, self._words = driver, words
        self._check(driver.cuInit(0))
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(self._check(driver.cuDeviceGet(0))))
        self._enter()
        self._numbers = int(self._check(driver.cuMemAlloc(4 * words)))
        self._check(driver.cuMemsetD32(self._numbers, seed, words))

    def step(self, number: int) -> str:
        """Changes a part of the numbers, by one of them; returns the digest of all."""
        self._enter()
        read = array("I", bytes(4 * self._words))
        self._check(self._driver.cuMemcpyDtoH(read.buffer_info()[0], self._numbers, 4 * self._words))
        first, value = changed(number, read)
        self._check(self._driver.cuMemsetD32(self._numbers + 4 * first, value, self._words - first))
        return hashlib.sha256(read).hexdigest()[:16]

    def _enter(self) -> None:
        self._check(self._driver.cuCtxSetCurrent(self._context))

    @staticmethod
    def _check(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(f"the driver returned {result[0]!r}")
        return result[1] if len(result) == 2 else None


def changed(step: int, numbers: array) -> tuple[int, int]:
    """Returns the first number that a step changes, and the value for it and all behind it."""
    value = (numbers[step % len(numbers)] * 0x9E3779B1 + step) % (1 << 32)
    return value % len(numbers), value


def main() -> None:
    parser = argparse.ArgumentParser(description="keep numbers in the device memory of some workers")
    parser.add_argument("--workers", type=int, default=1, help="each takes a GPU of Ray's")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=64, help="device memory of each")
    options = parser.parse_args()
    ray.init(address="auto", log_to_driver=False)
    workers = [Worker.remote(seed, options.mib << 18) for seed in range(options.workers)]
    for number in range(options.steps):
        print(number, *ray.get([worker.step.remote(number) for worker in workers]), flush=True)


if __name__ == "__main__":
    main()
