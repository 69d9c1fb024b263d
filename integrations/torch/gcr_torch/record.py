"""DCP's metadata of a step as JSON, the step's file `record`: tensors, their shards, and the file of each.

    {"format": 1, "tensors": {"model.weight": {"dtype": "bfloat16", "size": [8, 4], "requires_grad": true,
                                               "shards": [{"offsets": [0, 0], "sizes": [4, 4], "file": "0.0"}]}},
     "objects": {"optimizer.step": "0.1"}, "paths": {"model.weight": ["model", "weight"]}}

A shard's file has its elements in row-major order. An object's file is what `torch.save` made of it. `paths` are the
keys of the nested state; a planner that keeps something else has it pickled in the file `planner`, and no `paths`. The
record does not have the step: so an unchanged record is stored once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from gcr.imageerrors import Damaged, WrongImage
from gcr_torch.tensors import dtype_called, name_of

PLANNER = "planner"  # the file of a planner's data that is no paths
_FORMAT = 1

Files = Mapping[MetadataIndex, str]


class Record(Struct, frozen=True):
    """The contents of a record. `metadata`: without storage and planner data. `paths`: None if a planner has others."""

    metadata: Metadata
    files: Files
    paths: Mapping[str, Sequence[str | int]] | None


def is_paths(planner_data: object) -> bool:
    """Returns whether the data of a planner can be kept as paths: those of the default planner can."""
    return isinstance(planner_data, dict) and all(
        isinstance(key, str) and isinstance(path, tuple) and all(type(each) in (str, int) for each in path)
        for key, path in planner_data.items()
    )


def to_json(metadata: Metadata, files: Files) -> bytes:
    """Returns the record. Raises KeyError for a shard or object that no rank has written."""
    tensors: dict[str, Any] = {}
    objects: dict[str, str] = {}
    for name, each in metadata.state_dict_metadata.items():
        if isinstance(each, BytesStorageMetadata):
            objects[name] = files[MetadataIndex(name)]
        else:
            tensors[name] = _tensor(name, each, files)
    planner = metadata.planner_data
    paths = {name: [*path] for name, path in planner.items()} if is_paths(planner) else None
    body = {"format": _FORMAT, "tensors": tensors, "objects": objects, "paths": paths}
    return json.dumps(body, sort_keys=True).encode()


def _tensor(name: str, tensor: TensorStorageMetadata, files: Files) -> Mapping[str, Any]:
    shards = [
        {
            "offsets": [*shard.offsets],
            "sizes": [*shard.sizes],
            "file": files[MetadataIndex(name, shard.offsets)],
        }
        for shard in tensor.chunks
    ]
    return {
        "dtype": name_of(tensor.properties.dtype),
        "size": [*tensor.size],
        "requires_grad": tensor.properties.requires_grad,
        "shards": shards,
    }


def from_json(data: bytes, where: str) -> Record:
    """Returns the contents of a record. `where`: names it in errors. Raises Damaged, WrongImage for a newer one."""
    try:
        body = json.loads(data)
        if body["format"] != _FORMAT:
            raise WrongImage(f"{where}: a record of format {body['format']!r}; this gcr reads {_FORMAT}")
        return _said(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged.of(where, f"its record makes no sense: {error}") from error


def _said(body: Mapping[str, Any]) -> Record:
    found: dict[str, Any] = {}
    files: dict[MetadataIndex, str] = {}
    for name, each in body["tensors"].items():
        shards = [
            ChunkStorageMetadata(torch.Size(shard["offsets"]), torch.Size(shard["sizes"])) for shard in each["shards"]
        ]
        found[name] = TensorStorageMetadata(
            TensorProperties(dtype=dtype_called(each["dtype"]), requires_grad=each["requires_grad"]),
            torch.Size(each["size"]),
            shards,
        )
        for shard, said in zip(shards, each["shards"], strict=True):
            files[MetadataIndex(name, shard.offsets)] = said["file"]
    for name, file in body["objects"].items():
        found[name] = BytesStorageMetadata()
        files[MetadataIndex(name)] = file
    paths = body["paths"]
    return Record(Metadata(found), files, None if paths is None else {k: tuple(path) for k, path in paths.items()})
