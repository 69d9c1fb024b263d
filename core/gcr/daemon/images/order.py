"""An image as a checkpoint asks for it, and the refusals that need nothing but the request."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gcr.api.jobevents import ImageFailed, ImageWritten
from gcr.api.requests import ImageRequest, RestoreRequest
from gcr.daemon.ledger import log_event
from gcr.daemon.permission import Caller
from gcr.errors import UnsupportedState, UsageError
from gcr.image.store.location import folder_of, store_path
from gcr.peers.image import ImagePeer, StorePlace

Wanted = TypeVar("Wanted", bound=ImageRequest)


class Told(Struct, frozen=True):
    """The name of the job of an image, and the hearer of what becomes of the image."""

    job: str
    hear: Callable[[ImageWritten | ImageFailed], object] = log_event


class ImageOrder(Struct, frozen=True):
    """An image to be written. `start` starts a helper for it.

    `began`: when the checkpoint was asked for, by the monotonic clock. `patience`: seconds that the store may be silent
    when it is asked to take an image. `stays`: the job runs on; `whole`: its processes are in the image, too.
    `parks`: the image is private, and keeps a job that is suspended in place. The job may have no device memory.
    `told`: see Told.
    `user`: uid and gid of the helper, where it does not run as the daemon's own user.
    """

    name: str
    start: Callable[[], ImagePeer]
    began: float
    patience: float
    stays: bool = False
    whole: bool = False
    parks: bool = False
    max_bytes_per_s: float | None = None
    told: Told = Told("")
    user: tuple[int, int] | None = None

    @property
    def job(self) -> str:
        """Returns the name of the job."""
        return self.told.job


def at_home(request: Wanted, caller: Caller) -> Wanted:
    """Returns the request, with the store of the daemon's own user where it may name none.

    Raises NotOurs for another user's request.
    """
    of_a_node = request.cut is not None or (isinstance(request, RestoreRequest) and request.revive)
    if not of_a_node or request.image is None or request.store is not None:
        return request
    caller.check_owner(os.getuid(), "the store of this daemon")
    return replace(request, store=str(store_path()))


def place_of(request: ImageRequest, key: Sequence[int]) -> StorePlace:
    """Returns the store of a request; `key`: the descriptors that came with it, its caller's. Raises UsageError."""
    store = folder_of(request.store or "")
    if not Path(store).is_absolute():
        raise UsageError(f"{store!r} is no place of a store: its whole path is")
    if len(key) != request.encrypted:
        raise UsageError("the key of the store did not arrive")
    return StorePlace(store, key)


def nothing_to_image(job: str, stays: bool) -> UnsupportedState:
    """Returns the refusal of an image of a job without device memory. stays: the job was to run on."""
    text = f"an image holds device memory, and no process of {job} has any now"
    later = f"gcr ps {job} shows its device memory: make the image when there is some"
    return UnsupportedState(text, hint=later if stays else f"gcr checkpoint {job}, without --image, suspends it")
