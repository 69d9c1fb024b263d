"""Tensors of a nested state apart from the rest, so that each is stored in chunks of its own, and put back again.

The rest is what `torch.save` makes of the state without them. Taken out are plain, dense tensors in dictionaries, lists
and tuples; a tensor of another kind, or in another object, stays in the rest.
"""

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Path = tuple[Any, ...]  # keys and numbers that lead to a tensor
Tensors = dict[str, torch.Tensor]


def apart(state: Any) -> tuple[Tensors, bytes]:
    """Returns the tensors, by names that say where they were, and the rest."""
    tensors, paths = Tensors(), dict[str, Path]()

    def taken(path: Path, value: Any) -> Any:
        if not _goes(value):
            return value
        name = ".".join(map(str, path))
        while name in tensors:  # keys may have dots, and 1 and "1" are two keys
            name += "'"
        tensors[name], paths[name] = value, path
        return None

    into = io.BytesIO()
    torch.save({"rest": _changed(state, (), taken), "paths": paths}, into)
    return tensors, into.getvalue()


def together(tensors: Mapping[str, torch.Tensor], rest: bytes, map_location: Any, weights_only: bool | None) -> Any:
    """Returns the state; the last two are as of `torch.load`, for the rest. Raises what `torch.load` raises."""
    found = torch.load(io.BytesIO(rest), map_location=map_location, weights_only=weights_only)
    there = {path: tensors[name] for name, path in found["paths"].items()}
    return _changed(found["rest"], (), lambda path, value: there.get(path, value))


def _goes(value: Any) -> bool:
    if type(value) is not torch.Tensor or value.layout != torch.strided or value.requires_grad:
        return False
    return not (value.is_quantized or value.is_nested or value.device.type == "meta")


def _changed(found: Any, path: Path, leaf: Callable[[Path, Any], Any]) -> Any:
    """Returns the state with every leaf replaced by what `leaf` makes of it."""
    if type(found) in (dict, OrderedDict):
        return type(found)((key, _changed(value, (*path, key), leaf)) for key, value in found.items())
    if type(found) in (list, tuple):
        return type(found)(_each(found, path, leaf))
    return leaf(path, found)


def _each(found: list[Any] | tuple[Any, ...], path: Path, leaf: Callable[[Path, Any], Any]) -> Iterator[Any]:
    return (_changed(value, (*path, number), leaf) for number, value in enumerate(found))
