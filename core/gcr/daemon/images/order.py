"""An image as a checkpoint asks for it, and the refusals that need nothing but the request."""

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from gcr.api.jobevents import ImageFailed, ImageWritten
from gcr.api.requests import ImageRequest
from gcr.daemon.ledger import log_event
from gcr.errors import UnsupportedState, UsageError
from gcr.image.store.location import folder_of
from gcr.peers.image import ImagePeer, StorePlace


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
