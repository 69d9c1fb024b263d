"""A root (gcr.cutroot) beside a part of an image over nodes, compared with the part's manifest: here and elsewhere."""

from gcr.cutroot import Root, image_of
from gcr.image.files.manifest import Manifest
from gcr.imageerrors import Damaged


def may_have_root(name: str) -> bool:
    """Returns whether an image of this name may be a part of an image over nodes."""
    return image_of(name) is not None


def root_in(stored: bytes, manifest: Manifest, address: object) -> Root:
    """Returns the root in the file `stored` at `address`. Raises Damaged where the image is no part of it."""
    try:
        root = Root.from_text(stored.decode())
    except ValueError as error:
        raise Damaged.of(address, str(error)) from error
    if not is_part(manifest, root):
        raise Damaged.of(address, f"it is a root of other parts than image {manifest.name}")
    return root


def is_part(manifest: Manifest, root: Root) -> bool:
    """Returns whether the root names this very image, by its seal, and under its name."""
    rank = root.rank_of(manifest.seal().hex())
    return rank is not None and root.part(rank) == manifest.name
