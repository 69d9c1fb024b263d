# SPDX-License-Identifier: Apache-2.0
"""Holds shim/src/hooks/cuda.def against a driver: for a machine that has one.

    python tools/cuda_driver_check.py [--driver libcuda.so.1]

Reports symbols the driver exports that the list does not know, and questions to cuGetProcAddress that the driver
answers with another function than the list says. Needs no device. Exit code 1 if anything is reported.
"""

import argparse
import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

DEFINITIONS = Path(__file__).parents[1] / "shim/src/hooks/cuda.def"
PER_THREAD = 2  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM


def listed(text: str) -> list[tuple[str, str, int, int]]:
    """symbol, base, version, stream of every line of the .def."""
    lines = re.findall(r"^GCR_\w+\((\w+), (\w+), (\d+), ([01])", text, re.M)
    return [(symbol, base, int(version), int(stream)) for symbol, base, version, stream in lines]


def path_of(driver: ctypes.CDLL) -> str:
    """The file a driver was loaded from."""
    address = ctypes.cast(driver.cuInit, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[-1]
    raise LookupError("the driver's cuInit lies in no file")


def exported(path: str) -> set[str]:
    text = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    return {name for name in re.findall(r" (\w+)(?:@\S*)?$", text, re.M) if re.match("cu[A-Z]", name)}


def address(driver: ctypes.CDLL, symbol: str) -> int | None:
    try:
        return ctypes.cast(getattr(driver, symbol), ctypes.c_void_p).value
    except AttributeError:
        return None


def asked(driver: ctypes.CDLL, base: str, version: int, stream: int) -> int | None:
    """Returns the answer of cuGetProcAddress_v2."""
    found, status = ctypes.c_void_p(), ctypes.c_int()
    flags = ctypes.c_uint64(PER_THREAD if stream else 0)
    result = driver.cuGetProcAddress_v2(base.encode(), ctypes.byref(found), version, flags, ctypes.byref(status))
    return found.value if result == 0 else None


def disagreements(driver: ctypes.CDLL, lines: Sequence[tuple[str, str, int, int]]) -> Iterator[str]:
    names = {address(driver, symbol): symbol for symbol, _, _, _ in lines}
    for symbol, base, version, stream in lines:
        here, given = address(driver, symbol), asked(driver, base, version, stream)
        if here is not None and given is not None and here != given:
            other = names.get(given, "a function under no name of the list")
            yield f"{base} at {version}, stream {stream}: the list says {symbol}, the driver gives {other}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", default="libcuda.so.1")
    driver = ctypes.CDLL(parser.parse_args(arguments).driver)
    lines = listed(DEFINITIONS.read_text())
    unknown = sorted(exported(path_of(driver)) - {symbol for symbol, _, _, _ in lines})
    different = list(disagreements(driver, lines))
    for text in [*(f"not in the list: {name}" for name in unknown), *different]:
        print(text)
    return 1 if unknown or different else 0


if __name__ == "__main__":
    sys.exit(main())
