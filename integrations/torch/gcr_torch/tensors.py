"""The bytes of a tensor, and tensors of bytes."""

import ctypes
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gcr.imageerrors import NotSaveable, WrongImage

_PLAIN = (torch.Tensor, torch.nn.Parameter)  # classes that wrap no other tensor


def host_bytes(tensor: torch.Tensor, name: str) -> memoryview:
    """Returns the elements of a tensor in row-major order, without a copy where they lie so in host memory.

    The memory stays valid as long as the view; it changes with the tensor if there was no copy. `name`: for errors.
    Raises NotSaveable for a tensor that has no such bytes.
    """
    refuse_unsaveable(tensor, name)
    plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    size = plain.numel() * plain.element_size()
    if not size:
        return memoryview(b"")
    memory = (ctypes.c_ubyte * size).from_address(plain.data_ptr())
    memory.tensor = plain  # type: ignore[attr-defined]  # keeps the address valid
    return memoryview(memory).cast("B")


def refuse_unsaveable(tensor: torch.Tensor, name: str) -> None:
    """Raises NotSaveable for a tensor whose elements are not one run of bytes in one storage."""
    if kind := unsaveable(tensor):
        raise NotSaveable(f"{name}: a {kind} cannot be saved", hint="leave it out of the state, or make it dense")


def is_on_device(tensor: torch.Tensor) -> bool:
    """Tells whether the tensor's address is one of device memory."""
    return not (tensor.is_cpu or tensor.is_meta)


def unsaveable(tensor: torch.Tensor) -> str | None:
    """Returns in words why the tensor cannot be saved, None where it can."""
    if tensor.is_quantized:
        return "quantised tensor"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout != torch.strided:
        return f"sparse tensor ({tensor.layout})"
    if tensor.is_meta:
        return "meta tensor, which has no bytes,"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # its own address leads nowhere
        return f"tensor of class {type(tensor).__name__}, which wraps others,"
    return None


def plain(found: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a part of the state, of those that wrap others, such as a DTensor, the inner ones."""
    return iter((found,)) if type(found) in _PLAIN else (tensor for _, tensor in named(found))


def named(found: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of `plain` with their names. `name`: of the part."""
    if type(found) in _PLAIN:
        yield name, found
    elif isinstance(found, torch.Tensor):
        if found.is_nested or not is_traceable_wrapper_subclass(found):
            yield name, found
        else:
            for each in found.__tensor_flatten__()[0]:
                yield from named(getattr(found, each), name)
    elif isinstance(found, dict):
        for key, value in found.items():
            yield from named(value, f"{name}.{key}" if name else str(key))
    elif type(found) in (list, tuple):
        for number, value in enumerate(found):
            yield from named(value, f"{name}.{number}" if name else str(number))


def has_device_bytes(tensor: torch.Tensor) -> bool:
    """Tells whether a plain tensor has bytes of its own on a device."""
    return is_on_device(tensor) and not unsaveable(tensor) and bool(tensor.numel())


def of_bytes(data: memoryview, dtype: torch.dtype, sizes: Sequence[int]) -> torch.Tensor:
    """Returns a tensor in this memory, which holds its elements in row-major order."""
    if not prod(sizes):
        return torch.empty(tuple(sizes), dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).view(sizes)


def dtype_called(name: str) -> torch.dtype:
    """Returns the type of elements, such as `bfloat16`. Raises WrongImage for one that this PyTorch does not know."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise WrongImage(f"a tensor has elements of the type {name!r}, which PyTorch {torch.__version__} does not know")
    return found


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
