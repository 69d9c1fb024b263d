"""The first look of `gcr restore` at an image: its job, the size of its processes, and the notes beside them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gcr.imageerrors import NoSuchImage, WrongImage
from gcr.job.contained import NAME as CONTAINED
from gcr.job.stopped import NAME as STOPPED

if TYPE_CHECKING:
    from gcr.image.read.reader import ImageReader
    from gcr.image.store.store import Store

TREE = "tree.json"  # gcr.criu.tree.NOTE; importing that takes some milliseconds
NOTES = STOPPED, TREE
_Content = bytes  # the class below has a field of that name


class Revivable(Struct, frozen=True):
    """The job of an image. `bytes`: of the files in which its processes are; 0 without any.

    contained: the text of `container.json`, where a container's runtime has the processes; empty otherwise
    notes: contents of those of NOTES that are there, by name
    """

    job: str
    bytes: int
    contained: str = ""
    notes: Mapping[str, _Content] = field(default_factory=dict)


@contextmanager
def revivable(image: str, store: "Store | None") -> "Iterator[tuple[Revivable, ImageReader | None]]":
    """Yields what is in an image, and its reader for the block; None where there are no files to be read.

    Raises NoSuchImage, Damaged, WrongImage and others of the store.
    """
    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    from gcr.image.files.manifest import Cut

    manifest = store.images.manifest(image)
    if manifest.cut is Cut.APP:
        text = f"image {image} is a step that a training saved: there is no process in it"
        raise WrongImage(text, hint="the training loads it, by gcr.torch: docs/training.md")
    if not manifest.files:
        yield Revivable(manifest.source.job, 0), None
        return
    from gcr.image.read.reader import ImageReader

    with ImageReader(store, image, came=lambda _bytes: store.pulse()) as reader:
        yield _described(reader), reader


def _described(reader: "ImageReader") -> Revivable:
    manifest = reader.manifest  # another image may have its name by now
    job = manifest.source.job
    if CONTAINED in reader.files:
        return Revivable(job, 0, _content(reader, CONTAINED).decode())
    found = reader.read_files([name for name in NOTES if name in reader.files])
    notes = {name: bytes(content) for name, content in found.items()}
    return Revivable(job, sum(file.bytes for file in manifest.files), notes=notes)


def _content(reader: "ImageReader", name: str) -> bytes:
    content = bytearray(reader.files[name][1].bytes)
    reader.read_file(name, memoryview(content))
    return bytes(content)
