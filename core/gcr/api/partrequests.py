"""Requests about a node's parts of images of jobs over several nodes (gcr.cutroot), and their answer.

`store`: the whole path of its folder; None: the store of the daemon's own user. None is for an encrypted store.
"""

from gcr.api.answers import Answer
from gcr.api.checks import check_cut, check_image_name
from gcr.api.requests import Request
from gcr.cutroot import Root
from gcr.errors import UsageError


class PartsRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for the parts of an image over nodes, or for all parts of a job, by its name."""

    op = "parts"

    image: str | None = None
    job: str | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        if (self.image is None) == (self.job is None):
            raise UsageError("either the parts of an image, or those of a job")
        if self.image is not None:
            check_image_name(self.image)


class KeepPartRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Writes the root of an image beside this node's part of it. `root`: the text of a `Root` · `part`: its name."""

    op = "keep_part"

    root: str
    part: str
    store: str | None = None

    def __post_init__(self) -> None:
        check_image_name(self.part)
        self.parsed()

    def parsed(self) -> Root:
        """Raises UsageError."""
        try:
            return Root.from_text(self.root)
        except ValueError as error:
            raise UsageError(f"that is no root of an image: {error}") from error


class DropPartsRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Removes this node's parts of an image that are older than that of `cut`, of the same job, if its root is here."""

    op = "drop_parts"

    image: str
    cut: str
    store: str | None = None

    def __post_init__(self) -> None:
        check_image_name(self.image)
        check_cut(self.cut)


class ImagePart(Answer, frozen=True, kw_only=True):
    """A node's part of an image over nodes. `image`: the name that it has as an image of its store.

    created: seconds since the epoch · seal: of its manifest · bytes: of its device memory
    whole: it has the processes, too · root: its text; None where it is missing
    """

    image: str
    job: str
    created: float
    seal: str
    bytes: int
    whole: bool
    root: str | None


class ImageParts(Answer, frozen=True, kw_only=True):
    """A node's parts. `stopped`: the last run of the job that was asked for was stopped into an image."""

    parts: tuple[ImagePart, ...]
    stopped: bool = False
