"""Removes images, and what no other image needs of theirs."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct

from gcr.image.disk.locking import locked, packs_locked
from gcr.image.files.manifest import SUFFIX as MANIFEST
from gcr.image.files.manifest import none_called
from gcr.image.store.cleaning import Cleaner
from gcr.image.store.images import Images
from gcr.image.store.mark import MARK
from gcr.imageerrors import Damaged, ImageNeeded, NoSuchImage, StoreBusy, WrongImage

log = logging.getLogger(__name__)

NEEDED_SECONDS = 5.0  # that other processes may take to leave the store before an image goes that a job may need


class Removal(Struct, frozen=True):
    """One removal of images. `names`, `needed`, `seals`: see `Store.remove`."""

    cleaner: Cleaner
    names: Sequence[str]
    needed: Callable[[], Mapping[str, str]] | None
    seals: Mapping[str, bytes]

    @property
    def images(self) -> Images:
        return self.cleaner.images

    def run(self) -> int:
        """Returns the bytes freed. Raises NoSuchImage, Damaged, ImageNeeded, StoreBusy, OSError."""
        self._refuse_missing()
        meant = {**self._seals_of(self.names), **self.seals}
        asked = self.needed if self.needed and any(map(self._is_only_copy, self.names)) else None
        try:
            with locked(self.images.store, fcntl.LOCK_EX, NEEDED_SECONDS if asked else 0.0):
                going = [*self._meant(meant)]
                if asked:
                    _refuse_needed(going, asked())
                return self._removed(going)
        except StoreBusy as error:
            if asked:
                raise
            log.info("%s: not cleaned up: %s", self.images.store, error)
        self.cleaner.unlink_images(self._meant(meant))
        return 0

    def _refuse_missing(self) -> None:
        for path in [self.images.path(name) for name in self.names]:
            if not os.path.lexists(path):
                raise none_called(path.name.removesuffix(MANIFEST), self.images.names, self.images.store)
            if path.is_dir():
                raise Damaged.of(path, "it is a folder", hint="remove it by hand")

    def _removed(self, going: Sequence[str]) -> int:
        """Reads all other images before it removes anything. The lock is held."""
        with ExitStack() as until:
            try:
                until.enter_context(packs_locked(self.images.store / MARK, fcntl.LOCK_EX, 0.0))
                needed = self.images.pack_ids({*self.images.names()}.difference(going))
            except (Damaged, WrongImage, StoreBusy) as error:
                log.info("%s: not cleaned up: %s", self.images.store, error)
                self.cleaner.unlink_images(going)
                return 0
            self.cleaner.unlink_images(going)
            return self.cleaner.clean(needed)

    def _seals_of(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Returns the seals of those that can be read."""
        found: dict[str, bytes] = {}
        for name in names:
            with suppress(Damaged, WrongImage, NoSuchImage):
                found[name] = self.images.manifest(name).seal()
        return found

    def _meant(self, seals: Mapping[str, bytes]) -> Iterator[str]:
        """Yields the names that still have these seals. Each is read only when it is asked for, just before it goes."""
        return (name for name in self.names if name not in seals or self._seals_of([name]).get(name) == seals[name])

    def _is_only_copy(self, name: str) -> bool:
        try:
            return self.images.manifest(name).only_copy
        except WrongImage:  # a newer gcr may be able to read it
            return True
        except (Damaged, NoSuchImage):  # no job comes back from it
            return False


def _refuse_needed(names: Iterable[str], needed: Mapping[str, str]) -> None:
    for name in names:
        if name in needed:
            text = f"image {name} is all that the suspended job {needed[name]} can come back from"
            raise ImageNeeded(text, hint=f"gcr restore {needed[name]}")
