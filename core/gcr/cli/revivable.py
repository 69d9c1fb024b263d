"""The first look of `gcr restore` at an image: its job, and the size of its processes."""

from typing import TYPE_CHECKING

from msgspec import Struct

from gcr.imageerrors import NoSuchImage
from gcr.job.contained import NAME as CONTAINED

if TYPE_CHECKING:
    from gcr.image.store.store import Store


class Revivable(Struct, frozen=True):
    """The job of an image. `bytes`: of the files in which its processes are; 0 without any.

    contained: the text of `container.json`, where a container's runtime has the processes; empty otherwise
    """

    job: str
    bytes: int
    contained: str = ""


def revivable(image: str, store: "Store | None") -> Revivable:
    """Raises NoSuchImage, Damaged, WrongImage and others of the store."""
    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    manifest = store.images.manifest(image)
    if any(file.name == CONTAINED for file in manifest.files):
        return Revivable(manifest.source.job, 0, _contained(image, store))
    return Revivable(manifest.source.job, sum(file.bytes for file in manifest.files))


def _contained(image: str, store: "Store") -> str:
    from gcr.image.read.reader import ImageReader

    with ImageReader(store, image) as reader:
        text = bytearray(reader.files[CONTAINED][1].bytes)
        reader.read_file(CONTAINED, memoryview(text))
    return text.decode()
