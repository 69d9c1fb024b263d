"""The contents of a step by tensor, and how much of each has changed since the step before.

Names of tensors, and the files of their shards, are in the step's record (RECORD). Of the record of `gcr.torch` these
keys are read, and no framework is needed for it:

    {"format": 1, "tensors": {NAME: {"dtype": "bfloat16", "size": [8, 4],
                                     "shards": [{"offsets": [0, 0], "sizes": [4, 4], "file": FILE}]}},
     "objects": {NAME: FILE}}

A shard has changed where its chunks have other names than those of the same shard in the step before. One that the step
before had not, or had cut in another way, has changed as a whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from gcr.image.files.imagedfile import ImagedFile
from gcr.image.files.manifest import Manifest
from gcr.image.files.references import References
from gcr.image.files.smallfiles import files_of

Kind = Literal["tensor", "object", "file"]
Numbers = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
Key = tuple[str, Numbers, Numbers]  # name, offsets, sizes: the same shard in another step has the same

MOST_NAME = 300  # characters; a hostile record may have longer ones
_FORMAT = 1


class _Shard(Struct, frozen=True):
    offsets: Numbers
    sizes: Numbers
    file: str


class _Tensor(Struct, frozen=True):
    dtype: str
    size: Numbers
    shards: tuple[_Shard, ...]


class _Record(Struct, frozen=True):
    format: int
    tensors: dict[str, _Tensor]
    objects: dict[str, str]


class Item(Struct, frozen=True):
    """A tensor, an object or another file of a step. `files`: by what they are, so that a step before is comparable."""

    name: str
    kind: Kind
    files: Mapping[Key, str]
    dtype: str = ""
    shape: Numbers = ()


_decoder = msgspec.json.Decoder(_Record)  # here, since threads that make it at once end the process: converting.py


class Saved(Struct, frozen=True):
    """An item as reports have it. `bytes_changed`: since the step before; None: there is nothing to compare with."""

    name: str
    kind: Kind
    dtype: str
    shape: Numbers
    bytes: int
    bytes_changed: int | None


def items_of(record: bytes, manifest: Manifest) -> Sequence[Item]:
    """Returns what is in a step; each of its files is in one item. Raises ValueError for a record without sense."""
    found = [*_items(_decoder.decode(record))]
    named = [file for item in found for file in item.files.values()]
    there = {file.name for file in manifest.files}
    if len({*named}) != len(named) or not there.issuperset(named):
        raise ValueError("it names a file twice, or one that is not there")
    return [*found, *_by_name(there.difference(named))]


def _items(record: _Record) -> Iterator[Item]:
    if record.format != _FORMAT:
        raise ValueError(f"it has the format {record.format}, and this gcr reads {_FORMAT}")
    for name, tensor in record.tensors.items():
        files = {(name, shard.offsets, shard.sizes): shard.file for shard in tensor.shards}
        if len(files) != len(tensor.shards):
            raise ValueError("it has a shard twice")
        yield Item(name, "tensor", files, tensor.dtype, tensor.size)
    yield from (Item(name, "object", {(name, (), ()): file}) for name, file in record.objects.items())


def files_alone(manifest: Manifest) -> Sequence[Item]:
    """Returns the files of a step by their own names, where its record cannot be read."""
    return [*_by_name({file.name for file in manifest.files})]


def _by_name(files: set[str]) -> Iterator[Item]:
    return (Item(name, "file", {(name, (), ()): name}) for name in sorted(files))


class Layout:
    """The chunks of a step's files. `references`: None where they cannot be read; sizes are known all the same."""

    def __init__(self, manifest: Manifest, references: References | None) -> None:
        self._chunk_bytes, self._files = manifest.chunk_bytes, files_of(manifest)
        self._references = references or References(b"")
        self.is_comparable = references is not None

    def bytes(self, file: str) -> int:
        return self._files[file][1].bytes

    def has_same(self, file: str, before: "Layout") -> bool:
        """Returns whether a file is the same in the step before, under the same name."""
        return file in before._files and file in self._files and not self.changed(file, before, file)

    def changed(self, file: str, before: "Layout", there: str) -> int:
        """Returns the bytes of those chunks of a file that are not in the same place of the file `there` before."""
        first, mine = self._files[file]
        begin, other = before._files[there]
        count, had = mine.chunk_count(self._chunk_bytes), other.chunk_count(before._chunk_bytes)
        if count == had and self._references.same_names(first, first + count, before._references, begin):
            return 0
        names = self._references.names(first, first + count)
        earlier = before._references.names(begin, begin + min(count, had))
        same = [name == old for name, old in zip(names, earlier, strict=False)]
        return mine.bytes - sum(size for size, kept in zip(self._sizes(mine), same, strict=False) if kept)

    def _sizes(self, file: ImagedFile) -> Iterator[int]:
        return (size for _, size in file.chunks(self._chunk_bytes))


def compared(items: Sequence[Item], now: Layout, earlier: Sequence[Item], before: Layout | None) -> Sequence[Saved]:
    """Returns the items, largest first. `before`: of the step before, with the items `earlier`; None: there is none."""
    there = {key: file for item in earlier for key, file in item.files.items()}
    found = [_saved(item, now, there, before) for item in items]
    return sorted(found, key=lambda each: (-each.bytes, each.name))


def _saved(item: Item, now: Layout, there: Mapping[Key, str], before: Layout | None) -> Saved:
    total, changed = sum(map(now.bytes, item.files.values())), None
    if before is not None:
        changed = sum(
            now.changed(file, before, there[key]) if key in there else now.bytes(file)
            for key, file in item.files.items()
        )
    return Saved(_shown(item.name), item.kind, _shown(item.dtype), item.shape, total, changed)


def _shown(name: str) -> str:
    """Returns the name without characters that command a terminal, and not without bound."""
    text = "".join(char if char.isprintable() else "?" for char in name[: MOST_NAME + 1])
    return text if len(text) <= MOST_NAME else text[: MOST_NAME - 1] + "…"
