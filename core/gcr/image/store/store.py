"""The store: images by name, and the packs of chunks that they share.

A process that reads or writes a store holds its lock shared; one that cleans it up holds it alone. The kernel takes a
lock back from a process that dies. So a pack that a writer found its chunk in stays until the writer is done. A pack
that no image names goes when no process is at work. claim.py has the order of a commit.
"""

import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.disk.durable import unlink
from gcr.image.disk.locking import locked, packs_locked
from gcr.image.store.claim import Claim, claimed, held
from gcr.image.store.cleaning import Cleaner
from gcr.image.store.images import Images
from gcr.image.store.mark import MARK, Mark
from gcr.image.store.opening import open_store
from gcr.image.store.packs import Packs
from gcr.image.store.removal import Removal
from gcr.image.store.roots import Roots
from gcr.imageerrors import StoreBusy


@dataclass(slots=True)
class Store:
    """Thread-safe, and several processes may use one folder. `pulse` is called whenever a file of it has answered."""

    path: Path
    cipher: Cipher = field(default=PLAIN, repr=False)
    pulse: Callable[[], object] = field(default=lambda: None, repr=False)
    images: Images = field(init=False, repr=False)
    packs: Packs = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Makes what is missing. Raises StoreUnusable, UnsafeRuntime, WrongKey, Damaged."""
        self.images = Images(self.path, self.cipher, self.pulse)
        self.packs = Packs(self.path / "packs", self.cipher, self.pulse)
        open_store(self._mark, self._cleaner)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps every file that is there within the block. Raises WrongKey if the store has just become another one."""
        with locked(self.path, fcntl.LOCK_SH, None):
            self._mark.check(self.images)
            yield

    def held(self, name: str) -> AbstractContextManager[Claim]:
        """Claims a name for one writer; see claim.py. Raises ImageExists, StoreUnusable, OSError."""
        return held(self.images, name)

    def claimed(self, name: str) -> AbstractContextManager[Claim]:
        """Claims the name of an image that does not exist. Raises ImageExists, StoreUnusable, OSError."""
        return claimed(self.images, name)

    def remove(
        self,
        names: Sequence[str],
        needed: Callable[[], Mapping[str, str]] | None = None,
        seals: Mapping[str, bytes] | None = None,
    ) -> int:
        """Removes images, and what no other image needs of theirs. Returns the bytes freed.

        Raises NoSuchImage, Damaged before it removes anything. It frees no chunk while another process is at work, or
        beside an image that cannot be read, since that one may need the chunk.

        needed: returns the images that are a suspended job's only copy, with the job: they stay. It is asked while no
        process writes, since an image that is being written may become such a one. Raises ImageNeeded, StoreBusy.

        seals: of the images that are meant, else of those that are there now; a later image of such a name stays.
        """
        return Removal(self._cleaner, names, needed, seals or {}).run()

    def clean(self, patience: float = 0.0) -> int:
        """Removes what writers that died have left, and what no image needs. Returns the bytes freed.

        Raises StoreBusy, also while peers read packs; Damaged and WrongImage for an image that cannot be read, since
        its packs are unknown.
        """
        how = fcntl.LOCK_EX
        with locked(self.path, how, patience), packs_locked(self.path / MARK, how, patience):
            return self._cleaner.clean(self.images.pack_ids(self.images.names()))

    def sweep(self) -> None:
        """Removes what writers that died have left, unless another process is at work.

        What a pull has left stays for a day, since the next pull takes it up.
        """
        with suppress(StoreBusy):
            if any(self._cleaner.abandoned()):
                with locked(self.path, fcntl.LOCK_EX, 0.0):
                    for path in self._cleaner.abandoned():
                        unlink(path)

    @property
    def roots(self) -> Roots:
        """Returns the roots of images over nodes."""
        return Roots(self.images)

    @property
    def _mark(self) -> Mark:
        return Mark(self.path, self.cipher)

    @property
    def _cleaner(self) -> Cleaner:
        return Cleaner(self.images, self.packs)
