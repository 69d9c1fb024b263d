"""Device UUIDs: text as NVML and nvidia-smi print it, 16 bytes as the driver and the wire carry it."""

import ctypes
import uuid
from typing import Any

from gcr_nvidia.driver import bindings

_PREFIX = "GPU-"


def text(raw: bytes) -> str:
    """`GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` for 16 bytes."""
    return _PREFIX + str(uuid.UUID(bytes=raw))


def raw(name: str) -> bytes:
    """The 16 bytes of a UUID, with or without its prefix. Raises ValueError."""
    return uuid.UUID(name.removeprefix(_PREFIX)).bytes


def same(one: str, other: str) -> bool:
    return raw(one) == raw(other)


def driver_uuid(name: str) -> tuple[Any, object]:
    """A CUuuid and the buffer it points into, which must outlive it."""
    buffer = ctypes.create_string_buffer(raw(name), 16)
    return bindings().CUuuid(ctypes.addressof(buffer)), buffer
