"""Copies between pinned host memory and the first device, with so many chunks in flight, until told to stop.

`beside_copier.py SIZE`; prints `ready`. `go device_to_host|host_to_device CHUNK DEPTH` begins; `stop` prints the bytes
that were copied since, and the seconds. Ends with its standard input.
"""

import sys
import threading
import time
from collections import deque

from cuda.bindings import driver
from link import Link, check


class Copier:
    def __init__(self, link: Link) -> None:
        self._link, self._over = link, threading.Event()
        self._thread: threading.Thread | None = None
        self.copied = 0

    def go(self, way: str, chunk: int, depth: int) -> None:
        self._over.clear()
        self.copied = 0
        self._thread = threading.Thread(target=self._copy, args=(way, chunk, depth))
        self._thread.start()

    def stop(self) -> int:
        assert self._thread
        self._over.set()
        self._thread.join()
        return self.copied

    def _copy(self, way: str, chunk: int, depth: int) -> None:
        self._link.enter()
        events, at, under_way = [check(driver.cuEventCreate(2)) for _ in range(depth)], 0, deque[object]()
        while not self._over.is_set():
            if len(under_way) == depth:
                self._wait(under_way.popleft(), events, chunk)
            self._link.begin(way, at, chunk)
            event = events.pop()
            check(driver.cuEventRecord(event, self._link.stream))
            under_way.append(event)
            at = (at + chunk) % (self._link.size - chunk + 1)
        while under_way:
            self._wait(under_way.popleft(), events, chunk)

    def _wait(self, event: object, events: list[object], chunk: int) -> None:
        check(driver.cuEventSynchronize(event))
        events.append(event)
        self.copied += chunk


def main() -> None:
    check(driver.cuInit(0))
    copier, began = Copier(Link(0, int(sys.argv[1]))), 0.0
    print("ready", flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        if what == "go":
            way, chunk, depth = words
            began = time.perf_counter()
            copier.go(way, int(chunk), int(depth))
            print("going", flush=True)
        else:
            copied = copier.stop()
            print(copied, time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
