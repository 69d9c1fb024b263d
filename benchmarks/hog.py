"""Takes the device's memory but for `argv[1]` bytes, says `ready`, and keeps it until its standard input ends."""

import sys

from cuda.bindings import driver

STEPS = (1 << 30, 64 << 20, 8 << 20, 2 << 20)


def check(result: tuple) -> object:
    if int(result[0]):
        raise SystemExit(f"hog: {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def main() -> None:
    leave = int(sys.argv[1])
    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))
    for step in STEPS:
        while check(driver.cuMemGetInfo())[0] - step >= leave:
            if int(driver.cuMemAlloc(step)[0]):
                break
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
