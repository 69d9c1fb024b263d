"""The search for the image that a daemon meant to write before it died."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gcr.daemon.images.silence import Unhurried, answering
from gcr.daemon.permission import AS_OURSELVES, Acting, Caller, acting_for
from gcr.image.files.manifest import Manifest
from gcr.imageerrors import ImageExists, NoSuchImage, StoreUnusable, WrongKey
from gcr.job.decisions import DecisionRecord, KeptImage
from gcr.peers.image import ImagePeer, StorePlace

log = logging.getLogger("gcr.daemon")

LOOK_EVERY = 0.5  # seconds


def is_written(record: DecisionRecord, start: Callable[[Acting], ImagePeer], patience: float) -> bool:
    """Returns whether the record's image has the bytes of its transaction, and is durable.

    A helper that has begun to write goes on without its daemon: it is waited for. An encrypted image is taken to be
    there: only the user has the key, and will name it. patience: as `store_s`.
    Raises StoreUnusable, Damaged, NotOurs, PeerGone.
    """
    kept = record.image
    assert kept
    end = time.monotonic() + patience
    while True:
        with suppress(NoSuchImage):
            return _is_of(record, kept, start, patience)
        if not _is_being_written(kept, start, patience):
            return False
        if time.monotonic() > end:  # recovery comes back
            raise StoreUnusable(f"image {kept.name} is being written still, by a helper without a daemon")
        time.sleep(LOOK_EVERY)


def _is_of(record: DecisionRecord, kept: KeptImage, start: Callable[[Acting], ImagePeer], patience: float) -> bool:
    try:
        image = _manifest(kept, start, patience)
    except WrongKey:
        log.warning("job %s: image %s needs its key, and is taken to be whole", record.job, kept.name)
        return True
    return image.only_copy and any(each.table.transaction == record.transaction for each in image.processes)


def _is_being_written(kept: KeptImage, start: Callable[[Acting], ImagePeer], patience: float) -> bool:
    """Returns whether a writer has claimed the name, or has published the image since."""
    with _helper(kept, start) as helper, answering(kept.store, patience), suppress(ImageExists):
        helper.begin(StorePlace(kept.store), kept.name, None, patience)
        return False
    return True


def _manifest(kept: KeptImage, start: Callable[[Acting], ImagePeer], patience: float) -> Manifest:
    place = StorePlace(kept.store)
    with _helper(kept, start) as helper, answering(kept.store, patience):
        found = helper.manifest(place, kept.name, patience, Unhurried())
        helper.sync(place, patience)
        return found


@contextmanager
def _helper(kept: KeptImage, start: Callable[[Acting], ImagePeer]) -> Iterator[ImagePeer]:
    helper = start(acting_for(Caller(*kept.user)) if kept.user else AS_OURSELVES)
    try:
        yield helper
    finally:
        helper.channel.close()
