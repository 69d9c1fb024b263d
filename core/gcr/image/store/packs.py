"""The packs of a store, and the note that one was found damaged."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from gcr.image.crypto.cipher import Cipher
from gcr.image.disk.durable import sync
from gcr.image.pack.format import DISTRUSTED, Pack
from gcr.image.pack.format import SUFFIX as PACK
from gcr.image.pack.reader import PackReader
from gcr.imageerrors import Damaged, WrongImage
from gcr.listing import listed

log = logging.getLogger(__name__)

ANOTHER_PACK = "another pack has this id"


class Packs(Struct, frozen=True):
    """The packs of one store. Thread-safe. `pulse`: see Store.

    _known: readers of packs that were read ahead. A seal vouches for the index, so that a reader is right for good.
    """

    folder: Path
    cipher: Cipher
    pulse: Callable[[], object]
    _known: dict[Pack, PackReader] = field(default_factory=dict)

    def read_ahead(self) -> None:
        """Reads the ends of the packs that are there, for `reader`. A pack that goes later cannot be read then.

        Raises OSError.
        """
        for found in self.trusted():
            with suppress(Damaged):
                found.chunks  # noqa: B018  it is kept
                self._known[found.pack] = found

    def reader(self, pack: Pack) -> PackReader:
        """Raises Damaged, WrongImage, OSError."""
        self.pulse()
        if known := self._known.get(pack):
            return known
        return PackReader(self._path(pack), self.cipher, pack.seal)

    def has(self, pack: Pack) -> bool:
        """Returns whether the pack is there and was not found damaged; all its bytes were compared before it was named.

        Raises Damaged if another pack has its id, since an image may need that one; WrongImage, OSError.
        """
        self.pulse()
        path = self._path(pack)
        try:
            found = PackReader(path, self.cipher).pack
        except Damaged:
            return False
        if found.seal != pack.seal:
            raise Damaged.of(path, ANOTHER_PACK, hint="gcr verify")
        return not self.is_distrusted(pack)

    def take(self, finished: Path, pack: Pack) -> None:
        """Gives a synced file the name of its pack, replacing a damaged one. The caller syncs. Raises OSError."""
        final = self._path(pack)
        finished.rename(final)
        if (bad := final.with_suffix(DISTRUSTED)).exists():
            sync(self.folder)  # else a crash might bring back the damaged pack without its note
            bad.unlink(missing_ok=True)

    def trusted(self) -> Iterator[PackReader]:
        """Yields the packs that can be read and were not found damaged. Raises OSError."""
        for path in listed(self.folder, PACK):
            if path.with_suffix(DISTRUSTED).exists():
                continue
            try:
                yield PackReader(path, self.cipher)
            except (Damaged, WrongImage) as error:
                log.warning("%s", error)

    def is_distrusted(self, pack: Pack) -> bool:
        """Returns whether the pack was found damaged."""
        return self._path(pack).with_suffix(DISTRUSTED).exists()

    def is_kept(self, pack: Pack) -> bool:
        """Returns whether a pack that was read a moment ago is still there, and was not found damaged. Raises OSError.

        The file is not opened: its store was `used` since then.
        """
        try:
            return self._path(pack).stat().st_size == pack.bytes and not self.is_distrusted(pack)
        except FileNotFoundError:
            return False

    def refuse_distrusted(self, packs: Iterable[Pack]) -> None:
        """Raises Damaged if one of these was found damaged."""
        for pack in packs:
            if self.is_distrusted(pack):
                raise Damaged.of(self._path(pack), "it was found damaged meanwhile", hint="the same again")

    def distrust(self, pack: Path) -> None:
        """Notes that a pack was found damaged: images that are written from now on use no chunk of it."""
        with suppress(OSError):  # a disk that takes no note takes no image either
            os.close(os.open(pack.with_suffix(DISTRUSTED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def _path(self, pack: Pack) -> Path:
        return self.folder / f"{pack.id}{PACK}"
