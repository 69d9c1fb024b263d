"""Host memory that is page-locked for CUDA: a device copies it by itself, while this process goes on."""

import ctypes
import logging
from contextlib import suppress
from typing import Any

import torch

log = logging.getLogger("gcr.torch")


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def lock(address: int, nbytes: int) -> bool:
    """Page-locks memory until `unlock`, where CUDA is in use. Returns whether it did."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    failed = int(_cudart().cudaHostRegister(address, nbytes, 0))
    if failed:
        _forget_error()
        log.warning("%d bytes of host memory cannot be page-locked: error %d of CUDA", nbytes, failed)
    return not failed


def _forget_error() -> None:
    """Has CUDA forget this thread's last error. PyTorch would take it for one of a kernel that it launches next."""
    with suppress(AttributeError):  # the library's names are seen only where PyTorch does not have it built in
        ctypes.CDLL(None).cudaGetLastError()


def unlock(address: int) -> None:
    """Comes before the memory is unmapped, and after the last copy."""
    _cudart().cudaHostUnregister(address)
