"""This node's parts of images over nodes, as the coordinator of a cut asks for them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gcr.api.partrequests import DropPartsRequest, ImagePart, ImageParts, KeepPartRequest, PartsRequest
from gcr.daemon.coordinator import Coordinator
from gcr.daemon.images.silence import answering
from gcr.daemon.permission import Caller, acting_for
from gcr.image.store.location import folder_of, store_path
from gcr.job import runs
from gcr.peers.image import ImagePeer

AnyPartRequest = PartsRequest | KeepPartRequest | DropPartsRequest


def found(node: Coordinator, asked: PartsRequest, caller: Caller) -> ImageParts:
    """Raises StoreUnusable, WrongKey, NotOurs."""
    with _helper(node, asked, caller) as (helper, store):
        parts = helper.find_parts(store, asked.image, asked.job, node.config.store_s).parts
    shown = tuple(
        ImagePart(
            image=each.image,
            job=each.job,
            created=each.created,
            seal=each.seal,
            bytes=each.bytes,
            whole=each.whole,
            root=each.root,
        )
        for each in parts
    )
    return ImageParts(parts=shown, stopped=asked.job is not None and _is_stopped(node, asked.job))


def kept(node: Coordinator, asked: KeepPartRequest, caller: Caller) -> None:
    """Has the cut count on this node. Raises NoSuchImage, WrongImage, StoreUnusable, CutGivenUp, NotOurs."""
    part = node.cuts.part_in(asked.parsed().cut, caller)
    with _helper(node, asked, caller) as (helper, store):
        helper.keep_root(store, asked.root, asked.part, node.config.store_s)
    if part is not None:
        part.keep()


def dropped(node: Coordinator, asked: DropPartsRequest, caller: Caller) -> None:
    """Raises StoreUnusable, WrongKey, NotOurs."""
    with _helper(node, asked, caller) as (helper, store):
        helper.drop_parts(store, asked.image, asked.cut, node.config.store_s)


@contextmanager
def _helper(node: Coordinator, asked: AnyPartRequest, caller: Caller) -> Iterator[tuple[ImagePeer, str]]:
    """Yields a helper of the caller's, and the store. Raises NotOurs, and StoreUnusable where it does not answer."""
    if asked.store is None:
        caller.check_owner(os.getuid(), "the store of this daemon")
    store = folder_of(asked.store) if asked.store else str(store_path())
    helper = node.fleet.image_helper(acting_for(caller))
    try:
        with answering(store, node.config.store_s):
            yield helper, store
    finally:
        helper.channel.close()


def _is_stopped(node: Coordinator, job: str) -> bool:
    """Returns whether the job is not here, and its last run was stopped into an image."""
    if job in node.jobs.by_name:
        return False
    last = next(iter(runs.runs_of(job)), None)
    return last is not None and last.end is not None and last.end.state == runs.STOPPED
