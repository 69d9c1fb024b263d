"""Device UUIDs as the driver's structures carry them."""

import ctypes
from typing import Any

from gcr.devices import uuid_bytes
from gcr_nvidia.driver import bindings


def driver_uuid(name: str) -> tuple[Any, object]:
    """A CUuuid and the buffer it points into, which must outlive it."""
    buffer = ctypes.create_string_buffer(uuid_bytes(name), 16)
    return bindings().CUuuid(ctypes.addressof(buffer)), buffer
