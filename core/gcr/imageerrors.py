"""Errors of images and of the stores that keep them."""

from typing import Self

from gcr.errors import GcrError, Refused


class NoSuchImage(Refused):
    code = "no_such_image"


class ImageExists(Refused):
    """There is an image of that name, or one is being written."""

    code = "image_exists"


class ImageNeeded(Refused):
    """A suspended job has its bytes in this image and nowhere else."""

    code = "image_needed"


class WrongImage(Refused):
    """The image is of another version, or not an image at all."""

    code = "wrong_image"


class WrongKey(Refused):
    """The store is encrypted with another key, or none was given; or it is not encrypted, and one was."""

    code = "wrong_key"


class KeyUnusable(Refused):
    """The file or the command that should have the key gives none, or the file is open to others."""

    code = "key_unusable"


class StoreUnusable(Refused):
    """The store is full, read-only, gone, silent, without hard links, or another user's."""

    code = "store_unusable"


class StoreBusy(Refused):
    """Others read from it or write to it, for longer than was waited."""

    code = "store_busy"


class Damaged(GcrError):
    """A file of the store is not what was written."""

    code, exit = "damaged", 6

    @classmethod
    def of(cls, path: object, what: str, hint: str = "gcr verify --deep; restore another image") -> Self:
        return cls(f"{path}: {what}", hint=hint)


class ImageFailed(GcrError):
    """There is no such image, and the job runs on; `state` says so where it could not be taken back, or had changed."""

    code, exit = "image_failed", 4


class NotDurable(GcrError):
    """The checkpoint is done, and its image is still being written: it was not waited for any longer."""

    code, exit = "not_durable", 4
