"""A run in a bucket: a step is saved into a folder of this machine, and pushed; a step is brought there and read.

The folder has the last step that was saved or read, so that equal chunks are neither written nor sent again. The bucket
has no lock and is not listed. So the object `images/<run>.steps` lists the steps, after their manifests are there:

    {"format": 1, "steps": [1000, 2000]}

In an encrypted store it is encrypted. A step is part of the run once it is in the list.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec import Struct

from gcr.faults import reach
from gcr.image.crypto.cipher import Cipher
from gcr.image.disk.locking import running
from gcr.image.files.manifest import Manifest
from gcr.image.remote.pull import pull
from gcr.image.remote.push import push
from gcr.image.remote.remote import Remote
from gcr.image.remote.transfer import Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, WrongImage

_FORMAT = 1
_MOST = 16 << 20  # bytes of a list, of more than a million steps
LOCK_SUFFIX = ".pull"  # of the file that a process locks while it brings a step


class Elsewhere(Struct, frozen=True):
    """The run `run` in the bucket at `url`. Everything raises StoreUnusable, WrongKey, LibraryMissing."""

    url: str
    run: str

    @property
    def _path(self) -> str:
        return f"images/{self.run}.steps"

    def steps(self, cipher: Cipher) -> Sequence[int]:
        """Returns the steps in order. Raises Damaged, WrongImage."""
        remote = Remote(self.url, cipher)
        stored = remote.read(self._path, _MOST)
        if stored is None:
            return ()
        remote.check_mark()
        where = remote.address(self._path)
        try:
            body = json.loads(cipher.decrypt(self._path, stored, where))
            if body["format"] != _FORMAT:
                raise WrongImage(f"{where}: a list of format {body['format']!r}; this gcr reads {_FORMAT}")
            return sorted({*map(int, body["steps"])})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Damaged.of(where, f"it is no list of steps: {error}") from error

    def manifest(self, image: str, cipher: Cipher) -> Manifest | None:
        """Returns None without such an image. Raises Damaged, WrongImage."""
        return Remote(self.url, cipher).manifest(image)

    def send(self, store: Store, image: str, step: int) -> None:
        """Pushes a step, then lists it. Raises ImageExists if another image has its name, Damaged."""
        push(store, image, self.url, Transfer("push"))
        reach("checkpoint.pushed")
        steps = [*self.steps(store.cipher), step]
        data = json.dumps({"format": _FORMAT, "steps": sorted({*steps})}).encode()
        Remote(self.url, store.cipher).write(self._path, store.cipher.encrypt(self._path, data))

    def bring(self, store: Store, image: str) -> None:
        """Pulls a step, unless it is here, whole. Processes that want the same take turns.

        Raises NoSuchImage, Damaged, WrongImage.
        """
        with ExitStack() as stack:
            stack.enter_context(running(store.images.folder / f"{self.run}{LOCK_SUFFIX}", self.run, None))
            theirs = self.manifest(image, store.cipher)
            if theirs and not store.images.is_there(theirs) and image in store.images.names():
                store.remove([image])  # of a bucket that was emptied meanwhile
            pull(store.path, image, self.url, Transfer("pull"), store.cipher)
