"""The first look of `gcr restore` at an image: its job, and the size of its processes."""

from typing import TYPE_CHECKING

from msgspec import Struct

from gcr.imageerrors import NoSuchImage

if TYPE_CHECKING:
    from gcr.image.store.store import Store


class Revivable(Struct, frozen=True):
    """The job of an image. `bytes`: of the files in which its processes are; 0 without any."""

    job: str
    bytes: int


def revivable(image: str, store: "Store | None") -> Revivable:
    """Raises NoSuchImage, Damaged, WrongImage and others of the store."""
    if store is None:
        raise NoSuchImage(f"no image {image!r}", hint="gcr images")
    manifest = store.images.manifest(image)
    return Revivable(manifest.source.job, sum(file.bytes for file in manifest.files))
