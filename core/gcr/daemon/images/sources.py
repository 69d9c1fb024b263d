"""The source of the bytes of a job that comes back: its image, if there is one, and the user that can read it."""

from collections.abc import Sequence

from gcr.api.requests import RestoreRequest
from gcr.daemon.images.order import place_of
from gcr.daemon.jobs import Job
from gcr.daemon.permission import AS_OURSELVES, Acting, Caller, acting_for
from gcr.imageerrors import WrongImage, WrongKey
from gcr.peers.image import StorePlace


def image_of(job: Job, request: RestoreRequest, key: Sequence[int]) -> tuple[str, StorePlace] | None:
    """Returns the image with the job's bytes and its store: the one asked for, or the one that alone has them.

    Raises UsageError, and WrongKey where only the caller can have the key.
    """
    if request.image:
        return request.image, place_of(request, key)
    kept = job.decision.image if job.decision else None
    if kept is None:
        return None
    if not kept.name:
        text = f"the bytes of {job.name} are in an image alone, and no record here says in which"
        raise WrongImage(text, hint="gcr images; gcr restore --image NAME, with --store")
    if kept.encrypted:
        text = f"the bytes of {job.name} are in image {kept.name} alone, in an encrypted store: its key is needed"
        raise WrongKey(text, hint=f"gcr restore --image {kept.name} --store {kept.store}, with the key")
    return kept.name, StorePlace(kept.store)


def acting(job: Job, request: RestoreRequest, caller: Caller) -> Acting:
    """Returns the user that can read the image: the caller, or the owner of the only copy.

    Raises NotOurs where this daemon cannot act as that user.
    """
    if request.image:
        return acting_for(caller)
    kept = job.decision.image if job.decision else None
    return acting_for(Caller(*kept.user)) if kept and kept.user else AS_OURSELVES
