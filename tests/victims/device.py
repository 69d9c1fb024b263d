"""The runtime calls of victims that run on every vendor's devices; each vendor's module implements this."""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

VENDORS = {"nvidia": "cuda_device", "amd": "hip_device", "ascend": "acl_device"}
MIB = 1 << 20


class Device(Protocol):
    """The first device. Streams do not wait for each other; sizes are in bytes, words have 64 bits."""

    def enter(self) -> None:
        """The calling thread uses it from here on."""

    def stream(self) -> Any: ...

    def wait(self, stream: Any) -> None: ...

    def idle(self, stream: Any) -> bool: ...

    def allocate(self, size: int) -> int: ...

    def free(self, address: int, stream: Any = None) -> None:
        """Frees memory. `stream`: no work of another stream may still use it."""

    def allocate_ordered(self, size: int, stream: Any) -> int:
        """Allocates in stream order: uses in another stream come after this one."""

    def free_ordered(self, address: int, stream: Any) -> None: ...

    def successor(self, stream: Any) -> Any:
        """A new stream that goes on where this one is, which is destroyed."""

    def write(self, address: int, data: bytes) -> None: ...

    def read(self, address: int, size: int) -> bytearray: ...

    def fill(self, address: int, words: int, half: int, stream: Any) -> int:
        """Without waiting. What each word then holds, which follows from `half` (32 bits)."""

    def copy(self, to: int, source: int, size: int, stream: Any) -> None:
        """Without waiting, from device memory to device memory."""

    def adder(self, module: str) -> Callable[[Any, int, int, int], None]:
        """(stream, address, words, value): add to each word, by the kernel `add` of that file."""

    def handles(self, count: int, exportable: bool) -> tuple[int, int]:
        """Physical memory of the program's own, mapped side by side: the first address, and the bytes of each."""

    def physical(self, size: int) -> Any | None:
        """Physical memory that is mapped nowhere; None where there is not so much."""

    def granule(self) -> int: ...


def open_device(vendor: str) -> Device:
    """The device, in use by the calling thread."""
    made: Device = importlib.import_module(VENDORS[vendor]).open_device()
    return made
