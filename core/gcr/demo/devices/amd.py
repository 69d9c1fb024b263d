"""An AMD device, by hip-python."""

from typing import Any

try:
    from hip import hip
except ImportError as missing:
    raise SystemExit(f"{missing}; install gcr's extra [amd]") from None

_OUT_OF_MEMORY = 2  # hipErrorOutOfMemory
_ANY_WAY = hip.hipMemcpyKind.hipMemcpyDefault


def check(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise SystemExit(f"the runtime returned {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


def open_device() -> None:
    check(hip.hipInit(0))
    check(hip.hipSetDevice(0))


def allocate(size: int) -> int | None:
    error, *address = hip.hipMalloc(size)
    return None if int(error) == _OUT_OF_MEMORY else int(check((error, *address)))


def free(address: int) -> None:
    check(hip.hipFree(address))


def fill(address: int, byte: int, size: int) -> None:
    check(hip.hipMemset(address, byte, size))


def copy(to: int, source: int, size: int) -> None:
    check(hip.hipMemcpy(to, source, size, _ANY_WAY))


def download(address: int, size: int) -> bytes:
    data = bytearray(size)
    check(hip.hipMemcpy(data, address, size, _ANY_WAY))
    return bytes(data)
