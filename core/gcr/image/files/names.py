"""The names of an image's files in a store."""

import re

from gcr.cutroot import SUFFIX as ROOT
from gcr.errors import UsageError
from gcr.image.files.hashes import SUFFIX as HASHES
from gcr.image.files.manifest import SUFFIX as MANIFEST
from gcr.image.files.references import SUFFIX as CHUNKS

PULLED = ".pulled"
AHEAD = ".ahead"  # and a number: of a pack that is sent ahead of the image
NEW_AHEAD = f"{AHEAD}.new"
NEW = f"{MANIFEST}.new"  # of a manifest that is being written
PROBE = f"{MANIFEST}.link"
NEW_ROOT = f"{ROOT}.new"
NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z")


def checked_name(name: str) -> str:
    """Returns the name. Raises UsageError if no image can have it."""
    if not isinstance(name, str) or not NAME.match(name):
        shown = NAME.pattern.removesuffix(r"\Z")
        raise UsageError(f"{name!r} is no name of an image: {shown}")
    return name


def manifest_path(name: str) -> str:
    """Returns the path in the store. Raises UsageError."""
    return _path(name, MANIFEST)


def references_path(name: str) -> str:
    """Returns the path in the store. Raises UsageError."""
    return _path(name, CHUNKS)


def hashes_path(name: str) -> str:
    """Returns the path in the store. Raises UsageError."""
    return _path(name, HASHES)


def pulled_path(name: str) -> str:
    """Returns the path in the store of the file that marks an image from elsewhere. Raises UsageError."""
    return _path(name, PULLED)


def claim_path(name: str) -> str:
    """Returns the path in the store of the file that a writer of this image locks. Raises UsageError."""
    return _path(name, NEW)


def ahead_path(name: str, number: int) -> str:
    """Returns the path in the store of the note of a pack that is sent ahead. Raises UsageError."""
    return _path(name, f"{AHEAD}{number}")


def new_ahead_path(name: str) -> str:
    """Returns the path in the store of such a note that is being written. Raises UsageError."""
    return _path(name, NEW_AHEAD)


def root_path(name: str) -> str:
    """Returns the path in the store of the root of which this image is a part. Raises UsageError."""
    return _path(name, ROOT)


def new_root_path(name: str) -> str:
    """Returns the path in the store of a root that is being written. Raises UsageError."""
    return _path(name, NEW_ROOT)


def _path(name: str, suffix: str) -> str:
    return f"images/{checked_name(name)}{suffix}"
