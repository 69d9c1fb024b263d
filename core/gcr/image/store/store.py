"""The store: images by name, and the chunks they share.

Who reads from it or writes to it holds its lock shared, who cleans it up alone; the kernel takes a lock back from
whoever dies. So a pack that a writer found its chunk in stays until the writer is done, and one that nobody names goes
when nobody is at work.

A commit, in this order: packs synced and renamed, their directory synced; references and hashes synced; manifest synced
under the name of one that is being written; its directory synced; the manifest linked to its own name, which fails
where there is one; the directory synced. A crash leaves the image whole, or no image and files that the next clean-up
takes away. One that came from elsewhere has the file `<name>.pulled` beside its manifest, synced before it.

With a key an empty store becomes an encrypted one, and stays that. What a store is was looked at when it was opened,
and is looked at again under its lock before anything is read or written.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gcr.errors import Damaged, ImageExists, ImageNeeded, NoSuchImage, StoreBusy, StoreUnusable, WrongImage, WrongKey
from gcr.image.crypto.cipher import FILE_MAGIC, PLAIN, Cipher
from gcr.image.disk.durable import rehearse_publishing, sync, unlink, write_file, write_synced
from gcr.image.disk.failing import usable
from gcr.image.disk.locking import LOCK, claim, locked
from gcr.image.disk.regular import read_file
from gcr.image.files import references
from gcr.image.files.hashes import ImageHashes
from gcr.image.files.manifest import SUFFIX as MANIFEST
from gcr.image.files.manifest import Manifest, at, none_called
from gcr.image.files.names import NAME, PROBE, claim_path, hashes_path, manifest_path, pulled_path, references_path
from gcr.image.files.references import Reference
from gcr.image.files.smallfiles import MOST_MANIFEST, SmallFile, files_beside, hashes_file, manifest_of, references_file
from gcr.image.pack.format import DISTRUSTED, Pack
from gcr.image.pack.format import SUFFIX as PACK
from gcr.image.pack.reader import PackReader
from gcr.image.store.leftovers import is_resumable, unfinished, unneeded
from gcr.listing import listed
from gcr.runtime import check_own_directory

log = logging.getLogger(__name__)

ANOTHER_PACK = "another pack has this id"
MARK = "gcr-store"  # everything else here is ours; what is in it says whether it is encrypted
NEW_MARK = "gcr-store.new"
MOST_MARK = 4096  # bytes; far more than any has
MARK_SECONDS = 5.0  # that others may take to leave a store that is to be encrypted
NEEDED_SECONDS = 5.0  # that others may take to leave it before an image goes that a job may need


@dataclass(slots=True)
class Store:
    """Thread-safe, and several processes may use one directory. `pulse`: called whenever a file of it has answered."""

    path: Path
    cipher: Cipher = field(default=PLAIN, repr=False)
    pulse: Callable[[], object] = field(default=lambda: None, repr=False)

    def __post_init__(self) -> None:
        """Makes what is missing, and it stays after a crash. Raises StoreUnusable, UnsafeRuntime, WrongKey, Damaged."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self._own(self.path)
        with usable(self.path):
            self._mark()
        for folder in (self.packs, self.images):
            missing += [] if folder.exists() else [folder]
            self._own(folder)
        with usable(self.path):
            for folder in missing:
                sync(folder.parent)

    def _own(self, folder: Path) -> None:
        with usable(self.path), suppress(FileExistsError):  # whatever it is, see below
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        check_own_directory(folder)

    def _mark(self) -> None:
        """Only a folder of ours is cleaned up. Raises StoreUnusable for one with somebody's files in it."""
        found = self._found_mark()
        if found is None and any(entry.name not in (MARK, NEW_MARK, LOCK) for entry in listed(self.path)):
            raise StoreUnusable(f"{self.path} is no store of gcr's, and not empty", hint="another folder as --store")
        if found is None and not self.cipher.mark:
            os.close(os.open(self.path / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            sync(self.path)
        elif not found and self.cipher.mark:
            self._encrypt()
        self._check_mark()

    def _encrypt(self) -> None:
        """From here on this store, where there is no image, is one of the cipher. Raises StoreBusy."""
        with locked(self.path, fcntl.LOCK_EX, MARK_SECONDS):
            if (found := self._found_mark()) is not None:
                for folder in (self.packs, self.images):  # whoever made it may have died before they were there
                    self._own(folder)
                if found or self.names():
                    return
                self._clean(())
            write_file(self.path / NEW_MARK, self.cipher.mark)
            (self.path / NEW_MARK).rename(self.path / MARK)
            sync(self.path)

    def _found_mark(self) -> bytes | None:
        try:
            return read_file(self.path / MARK, MOST_MARK)
        except FileNotFoundError:
            return None

    def _check_mark(self) -> None:
        """Raises WrongKey, Damaged, WrongImage."""
        found = self._found_mark() or b""
        try:
            self.cipher.check_mark(found, self.path)
        except WrongKey:
            if not found and any(self.stored(name).startswith(FILE_MAGIC) for name in self.names()):
                raise Damaged.of(self.path / MARK, "it is empty, and there are encrypted images") from None
            raise

    @property
    def packs(self) -> Path:
        return self.path / "packs"

    @property
    def images(self) -> Path:
        return self.path / "images"

    # ---- looking ------------------------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Raises StoreUnusable."""
        with usable(self.path):
            found = [path.name.removesuffix(MANIFEST) for path in listed(self.images, MANIFEST)]
        return [name for name in found if NAME.match(name)]

    def readable(self) -> Iterator[Manifest]:
        for name in self.names():
            try:
                yield self.manifest(name)
            except (Damaged, WrongImage, NoSuchImage) as error:
                log.warning("%s", error)

    def manifest(self, name: str) -> Manifest:
        """Raises NoSuchImage, WrongImage, Damaged, UsageError."""
        return self.manifest_of(name, self.stored(name))

    def manifest_of(self, name: str, stored: bytes) -> Manifest:
        """The same, by what is stored of it."""
        return manifest_of(name, stored, self.cipher, self._manifest_path(name))

    def stored(self, name: str) -> bytes:
        """Its manifest, as it is stored. Raises NoSuchImage, Damaged, UsageError."""
        try:
            data = read_file(self._manifest_path(name), MOST_MANIFEST)
        except FileNotFoundError:
            raise none_called(name, self.names, self.path) from None
        self.pulse()
        return data

    def references(self, manifest: Manifest) -> Sequence[Reference]:
        """Raises Damaged; NoSuchImage where the image was removed since its manifest was read."""
        return references.from_bytes(self.read_beside(manifest, references_file(manifest))[1])

    def hashes(self, manifest: Manifest) -> ImageHashes:
        """The same."""
        return ImageHashes.from_bytes(self.read_beside(manifest, hashes_file(manifest))[1])

    def stored_beside(self, manifest: Manifest) -> Mapping[str, bytes]:
        """References and hashes as they are stored, by their paths; they were compared. The same."""
        return {file.path: self.read_beside(manifest, file)[0] for file in files_beside(manifest)}

    def read_beside(self, manifest: Manifest, file: SmallFile) -> tuple[bytes, bytes]:
        """As it is stored, and what it says. The same."""
        path, stored = self.path / file.path, None
        try:
            with suppress(FileNotFoundError):
                stored = read_file(path, file.most)
            said = file.said(stored, self.cipher, path)
        except Damaged:
            self._refuse_removed(manifest)
            raise
        assert stored is not None
        self.pulse()
        return stored, said

    def _refuse_removed(self, manifest: Manifest) -> None:
        """Whoever reads locks nobody out who removes an image and takes its name. Raises NoSuchImage."""
        with suppress(Damaged, WrongImage):
            if not self.is_there(manifest):
                raise NoSuchImage(f"image {manifest.name!r} was removed just now", hint=f"gcr images {at(self.path)}")

    def is_there(self, manifest: Manifest) -> bool:
        """And no other one has its name. Raises Damaged, WrongImage."""
        try:
            return self.manifest(manifest.name) == manifest
        except NoSuchImage:
            return False

    def is_pulled(self, name: str) -> bool:
        """It came from elsewhere: nothing but who pushed it vouches for its hashes."""
        return os.path.lexists(self.path / pulled_path(name))

    # ---- locks --------------------------------------------------------------------------------------------------

    @contextmanager
    def used(self) -> Iterator[None]:
        """Nothing that is there goes within the block. Raises WrongKey where the store has just become another one."""
        with locked(self.path, fcntl.LOCK_SH, None):
            self._check_mark()
            yield

    # ---- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self, name: str) -> Iterator[int]:
        """The descriptor of a manifest that may be written: nobody else writes anything under this name meanwhile.

        Raises ImageExists where somebody does, StoreUnusable, OSError.
        """
        new = self.path / claim_path(name)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            claim(fd, new, name)
            rehearse_publishing(new, self.images / f"{name}{PROBE}")
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def claimed(self, name: str) -> Iterator[int]:
        """The same, of an image that is not there yet. Raises ImageExists, StoreUnusable, OSError."""
        with self.held(name) as claim:
            if self._manifest_path(name).exists():
                hint = f"another name, or gcr rm {name} {at(self.path)}"
                raise ImageExists(f"there is an image {name!r} already", hint=hint)
            yield claim

    def write_references(self, name: str, data: bytes) -> None:
        """Of an image that was claimed, as they are to be stored. Raises OSError."""
        write_file(self.path / references_path(name), data)

    def write_hashes(self, name: str, data: bytes) -> None:
        """The same."""
        write_file(self.path / hashes_path(name), data)

    def publish(self, name: str, manifest: bytes, claim: int, pulled: bool = False) -> None:
        """As it is to be stored; everything that it names is synced. `pulled`: nothing is to be built upon it.

        Raises ImageExists, OSError.
        """
        final, new, mark = self._manifest_path(name), self.path / claim_path(name), self.path / pulled_path(name)
        if pulled:
            write_file(mark, b"")
        else:
            mark.unlink(missing_ok=True)  # of one that had this name
        os.ftruncate(claim, 0)
        write_synced(claim, manifest)
        sync(self.images)
        try:
            os.link(new, final)
        except FileExistsError:
            raise ImageExists(f"there is an image {name!r} already") from None
        try:
            new.unlink()
            sync(self.images)
        except BaseException:  # whoever is told that there is no such image finds none
            final.unlink(missing_ok=True)
            raise

    def pack(self, pack: Pack) -> PackReader:
        """Raises Damaged, WrongImage, OSError."""
        self.pulse()
        return PackReader(self.packs / f"{pack.id}{PACK}", self.cipher, pack.seal)

    def has(self, pack: Pack) -> bool:
        """It is there, nobody found it damaged, and every byte of it was compared before it got its name.

        Raises Damaged where its id is that of another pack, which some image may need; WrongImage, OSError.
        """
        self.pulse()
        path = self.packs / f"{pack.id}{PACK}"
        try:
            found = PackReader(path, self.cipher).pack
        except Damaged:
            return False
        if found.seal != pack.seal:
            raise Damaged.of(path, ANOTHER_PACK, hint="gcr verify")
        return not path.with_suffix(DISTRUSTED).exists()

    def take_pack(self, finished: Path, pack: Pack) -> None:
        """What was synced gets its name, also in the place of what is damaged. The caller syncs. Raises OSError."""
        final = self.packs / f"{pack.id}{PACK}"
        finished.rename(final)
        if (bad := final.with_suffix(DISTRUSTED)).exists():
            sync(self.packs)  # or a crash might bring back the damaged one, and nobody would know
            bad.unlink(missing_ok=True)

    def trusted_packs(self) -> Iterator[PackReader]:
        """Raises OSError."""
        for path in listed(self.packs, PACK):
            if path.with_suffix(DISTRUSTED).exists():
                continue
            try:
                yield PackReader(path, self.cipher)
            except (Damaged, WrongImage) as error:
                log.warning("%s", error)

    def refuse_distrusted(self, packs: Iterable[Pack]) -> None:
        """Raises Damaged where one was found damaged."""
        for pack in packs:
            if (path := self.packs / f"{pack.id}{DISTRUSTED}").exists():
                raise Damaged.of(path.with_suffix(PACK), "it was found damaged meanwhile", hint="the same again")

    def distrust(self, pack: Path) -> None:
        """It was found damaged: no image that is written from now on has chunks in it."""
        with suppress(OSError):  # a disk that takes no word of it takes no image either
            os.close(os.open(pack.with_suffix(DISTRUSTED), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    # ---- leaving ------------------------------------------------------------------------------------------------

    def remove(
        self,
        names: Sequence[str],
        needed: Callable[[], Mapping[str, str]] | None = None,
        seals: Mapping[str, bytes] | None = None,
    ) -> int:
        """These images, and what nobody else needs of theirs: bytes freed, fewer while others are at work.

        All or none are known: raises NoSuchImage, Damaged before anything is removed. Beside an image that cannot be
        read no chunk is taken away: who knows what that one needs.

        needed: images that jobs have nothing else than, and which jobs, so that they stay. It is asked while nobody
        writes, for one that is just being written becomes such an image. Raises ImageNeeded, StoreBusy.

        seals: of the images that are meant, else of those that are there now; who takes such a name then stays.
        """
        paths = [self._manifest_path(name) for name in names]
        for path in paths:
            if not os.path.lexists(path):
                raise none_called(path.name.removesuffix(MANIFEST), self.names, self.path)
            if path.is_dir():
                raise Damaged.of(path, "it is a folder", hint="remove it by hand")
        meant = {**self._seals(names), **(seals or {})}
        asked = needed if needed and any(map(self._is_only_copy, names)) else None
        try:
            with locked(self.path, fcntl.LOCK_EX, NEEDED_SECONDS if asked else 0.0):
                going = [*self._meant(names, meant)]
                if asked:
                    _refuse_needed(going, asked())
                return self._removed(going)
        except StoreBusy as error:
            if asked:
                raise
            log.info("%s: not cleaned up: %s", self.path, error)
        self._unlink_images(self._meant(names, meant))
        return 0

    def _removed(self, names: Sequence[str]) -> int:
        """The lock is held. What cannot be read is found out before anything is gone."""
        try:
            needed = self._needed({*self.names()}.difference(names))
        except (Damaged, WrongImage) as error:
            log.info("%s: not cleaned up: %s", self.path, error)
            self._unlink_images(names)
            return 0
        self._unlink_images(names)
        return self._clean(needed)

    def _unlink_images(self, names: Iterable[str]) -> None:
        for name in names:
            self._manifest_path(name).unlink(missing_ok=True)
            self.pulse()
        sync(self.images)

    def _seals(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Of those that can be read."""
        found: dict[str, bytes] = {}
        for name in names:
            with suppress(Damaged, WrongImage, NoSuchImage):
                found[name] = self.manifest(name).seal()
        return found

    def _meant(self, names: Iterable[str], seals: Mapping[str, bytes]) -> Iterator[str]:
        """Each is looked at when it is asked for: just before it goes."""
        return (name for name in names if name not in seals or self._seals([name]).get(name) == seals[name])

    def _is_only_copy(self, name: str) -> bool:
        try:
            return self.manifest(name).only_copy
        except WrongImage:  # a newer gcr may know
            return True
        except (Damaged, NoSuchImage):  # nobody comes back from it
            return False

    def clean(self, patience: float = 0.0) -> int:
        """Takes away what writers that died have left, and what no image needs: bytes freed.

        Raises StoreBusy; Damaged and WrongImage where an image cannot be read, whose packs nobody knows then.
        """
        with locked(self.path, fcntl.LOCK_EX, patience):
            return self._clean(self._needed(self.names()))

    def _needed(self, names: Iterable[str]) -> set[str]:
        """Ids of the packs of these images. Raises Damaged, WrongImage, OSError."""
        found: set[str] = set()
        for name in names:
            with suppress(NoSuchImage):  # removed by somebody just now
                found |= {pack.id for pack in self.manifest(name).packs}
        return found

    def _clean(self, needed: Collection[str]) -> int:
        """The lock is held; `needed`: packs that stay."""
        return sum(map(self._unlink, unneeded(self.packs, self.images, {*self.names()}, needed)))

    def _unlink(self, path: Path) -> int:
        """Bytes that are free now."""
        self.pulse()
        return unlink(path)

    def sweep(self) -> None:
        """A look at what writers that died have left, and it goes where nobody is at work.

        What a pull has left the next one takes up: it goes when there was none for a day.
        """
        with suppress(StoreBusy):
            if any(self._abandoned()):
                with locked(self.path, fcntl.LOCK_EX, 0.0):
                    for path in self._abandoned():
                        unlink(path)

    def _abandoned(self) -> Iterator[Path]:
        return (path for path in self._unfinished() if not is_resumable(path))

    def _unfinished(self) -> Iterator[Path]:
        return unfinished(self.packs, self.images, {*self.names()})

    def _manifest_path(self, name: str) -> Path:
        return self.path / manifest_path(name)


def _refuse_needed(names: Iterable[str], needed: Mapping[str, str]) -> None:
    for name in names:
        if name in needed:
            text = f"image {name} is all that the suspended job {needed[name]} can come back from"
            raise ImageNeeded(text, hint=f"gcr restore {needed[name]}")
