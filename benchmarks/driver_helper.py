"""Reads `lock|checkpoint|restore|unlock PID`, makes the driver's call, prints its result and seconds."""

import sys
import time

from cuda.bindings import driver

LOCK_MS = 60_000


def main() -> None:
    driver.cuInit(0)
    arguments = driver.CUcheckpointLockArgs()
    arguments.timeoutMs = LOCK_MS
    calls = {
        "lock": lambda pid: driver.cuCheckpointProcessLock(pid, arguments),
        "checkpoint": lambda pid: driver.cuCheckpointProcessCheckpoint(pid, None),
        "restore": lambda pid: driver.cuCheckpointProcessRestore(pid, None),
        "unlock": lambda pid: driver.cuCheckpointProcessUnlock(pid, None),
    }
    print("ready", flush=True)
    for line in sys.stdin:
        step, pid = line.split()
        started = time.perf_counter()
        result = calls[step](int(pid))[0]
        print(result.name, time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
