"""The claim of an image's name in its store, made by the helper that is to write the image."""

import logging
import time
from collections.abc import Sequence
from threading import Event, Lock, Thread

from msgspec import Struct, field

from gcr import units
from gcr.daemon.images.order import ImageOrder
from gcr.daemon.images.silence import answering
from gcr.engine.node import Course
from gcr.errors import GcrError, NoRoom, PeerGone, typed
from gcr.image.files.smallfiles import least_bytes
from gcr.peers.image import ImagePeer, StorePlace
from gcr.processes import alive, identify
from gcr.protocol.seqpacket import close_all

log = logging.getLogger("gcr.daemon")

POLL = 0.05


class Claim(Struct, eq=False):
    """A helper is started, and claims the name, on a thread of its own. `close` it in the end.

    `store` has the descriptor of its key until the name is claimed and the claim is closed. `after`: the claim of an
    earlier attempt, which is closed; its helper holds the name until it has ended. `error`: why there is no claim.
    """

    order: ImageOrder
    store: StorePlace
    after: "Claim | None" = None
    error: GcrError | None = None
    _peer: ImagePeer | None = None
    _free: int | None = None  # bytes, where the store is
    _over: Event = field(default_factory=Event)
    _begun: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _starting: Thread = field(default_factory=Thread)

    def __post_init__(self) -> None:
        self._starting = Thread(target=self._begin, name="gcr-image", daemon=True)
        self._starting.start()

    def _begin(self) -> None:
        order = self.order
        try:
            if self.after:
                self.after.await_end(order.patience)
            self._peer = order.start()
            if self._over.is_set():  # `close` may have come before there was a helper to close
                self._peer.channel.close()
            with answering(self.store.path, order.patience):
                self._free = self._peer.begin(self.store, order.name, order.max_bytes_per_s, order.patience)
        except GcrError as error:
            self.error = error
        except OSError as error:
            self.error = PeerGone(f"no helper for image {order.name}: {error}")
        except Exception as error:  # a bug: without an error here the checkpoint would say that it is done
            log.exception("job %s: image %s was not begun", order.job, order.name)
            self.error = typed(error)
        finally:
            self._release_key(self._begun)

    def ready(self) -> ImagePeer:
        """Returns the helper once it has claimed the name.

        Raises ImageExists, StoreUnusable, UnsafeRuntime, PeerGone.
        """
        self._starting.join()
        if self.error:
            raise self.error
        assert self._peer
        return self._peer

    def await_begun(self, course: Course) -> None:
        """Waits until the name is claimed or refused. Raises Interrupted, DeadlinePassed."""
        while self._starting.is_alive():
            course.left(POLL)
            self._starting.join(POLL)

    def look_at_room(self, sizes: Sequence[int], course: Course) -> None:
        """Raises NoRoom where an image of so many bytes cannot fit. Warns the caller where it may not fit."""
        total = sum(sizes)
        if self._free is None or self._free >= total:
            return
        refuse_full(self.store.path, least_bytes(total), self._free)
        text = f"the image takes up to {units.size(total)}, and {self.store.path} has {units.size(self._free)} free"
        log.warning("job %s: %s", self.order.job, text)
        course.tell("checking", text)

    def close(self) -> None:
        """Has the helper end once it has written what it began; does not wait for that."""
        self._release_key(self._over)
        if self._peer:
            self._peer.channel.close()

    def await_end(self, patience: float) -> None:
        """Waits until the helper has ended, for so many seconds at most."""
        end = time.monotonic() + patience
        self._starting.join(patience)
        helper = identify(self._peer.pid) if self._peer else None
        while helper and alive(helper) and time.monotonic() < end:
            time.sleep(POLL)

    def _release_key(self, came: Event) -> None:
        """Closes the key once the name is claimed and the claim is closed, in either order."""
        with self._lock:
            came.set()
            if not (self._over.is_set() and self._begun.is_set()):
                return
            key, self.store = self.store.key, StorePlace(self.store.path)
        close_all(key)


def refuse_full(store: str, least: int, free: int) -> None:
    """Raises NoRoom."""
    if free < least:
        text = f"the image takes {units.size(least)} at least, and {store} has {units.size(free)} free"
        hint = "gcr rm or gcr prune makes room; --store names another folder; without --image no room is needed there"
        raise NoRoom(text, missing=least - free, hint=hint)
