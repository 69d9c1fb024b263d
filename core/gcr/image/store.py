"""The store: images by name, and the chunks they share.

Who reads from it or writes to it holds its lock shared, who cleans it up alone; the kernel takes a lock back from
whoever dies. So a pack that a writer found its chunk in stays until the writer is done, and one that nobody names goes
when nobody is at work.

A commit, in this order: packs synced and renamed, their directory synced; references and hashes synced; manifest synced
under the name of one that is being written; its directory synced; the manifest linked to its own name, which fails
where there is one; the directory synced. A crash leaves the image whole, or no image and files that the next clean-up
takes away.

With a key an empty store becomes an encrypted one, and stays that. What a store is was looked at when it was opened,
and is looked at again under its lock before anything is read or written.
"""

import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gcr.errors import Damaged, ImageExists, ImageNeeded, NoSuchImage, StoreBusy, StoreUnusable, WrongImage, WrongKey
from gcr.hashing.chunks import DIGEST_BYTES, chunk_count
from gcr.hashing.key import SECRET_BYTES
from gcr.image import references
from gcr.image.chunks import cut, name_of
from gcr.image.cipher import FILE_MAGIC, PLAIN, Cipher
from gcr.image.files import (
    LOCK,
    NAME,
    claim,
    hashes_path,
    locked,
    manifest_path,
    references_path,
    sync,
    unlink,
    usable,
    write_file,
    write_synced,
)
from gcr.image.hashes import ImageHashes
from gcr.image.manifest import SUFFIX as MANIFEST
from gcr.image.manifest import Manifest
from gcr.image.pack import ARRIVING, DISTRUSTED, FILE, UNFINISHED, Pack, PackReader
from gcr.image.pack import SUFFIX as PACK
from gcr.image.references import Reference
from gcr.image.regular import read_file
from gcr.listing import listed
from gcr.runtime import check_own_directory

log = logging.getLogger(__name__)

NEW = ".json.new"
PROBE = ".json.link"
OURS = re.compile(r"([a-z][a-z0-9._-]{0,62})\.(?:json\.new|json\.link|chunks|hashes)\Z")  # beside its manifest
MARK = "gcr-store"  # everything else here is ours; what is in it says whether it is encrypted
NEW_MARK = "gcr-store.new"
MOST_MARK = 4096  # bytes; far more than any has
MOST_MANIFEST = 64 << 20  # bytes: of some 100,000 allocations
MOST_OVERHEAD = 64  # bytes of a small file that is encrypted
MARK_SECONDS = 5.0  # that others may take to leave a store that is to be encrypted
NEEDED_SECONDS = 5.0  # that others may take to leave it before an image goes that a job may need
RESUMABLE_S = 86400.0  # for so long what a pull has left is not taken away to make room for nobody
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without them say to link()


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
            if not found and any(self._stored(name).startswith(FILE_MAGIC) for name in self.names()):
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
        return manifest_of(name, self._stored(name), self.cipher, self._manifest_path(name))

    def _stored(self, name: str) -> bytes:
        """Its manifest, as it is stored. Raises NoSuchImage, Damaged, UsageError."""
        try:
            data = read_file(self._manifest_path(name), MOST_MANIFEST)
        except FileNotFoundError:
            raise NoSuchImage(f"no image {name!r}", hint="gcr images") from None
        self.pulse()
        return data

    def references(self, manifest: Manifest) -> Sequence[Reference]:
        """Raises Damaged."""
        size = references_bytes(manifest)
        return references.from_bytes(self._vouched_for(references_path(manifest.name), manifest.chunks, size))

    def hashes(self, manifest: Manifest) -> ImageHashes:
        """Raises Damaged."""
        size = hashes_bytes(manifest)
        return ImageHashes.from_bytes(self._vouched_for(hashes_path(manifest.name), manifest.hashes, size))

    def _vouched_for(self, file: str, digest: bytes, size: int) -> bytes:
        """What a small file says, whose digest a manifest has, as its size. Raises Damaged."""
        path = self.path / file
        try:
            stored = read_file(path, size + MOST_OVERHEAD)
        except FileNotFoundError:
            raise Damaged.of(path, "it is not there") from None
        self.pulse()
        data = self.cipher.decrypt(file, stored, path)
        if name_of(data) != digest:
            raise Damaged.of(path, "it is not what was written")
        if len(data) != size:
            raise Damaged.of(path, "it has another number of chunks than the image")
        return data

    # ---- locks --------------------------------------------------------------------------------------------------

    @contextmanager
    def used(self) -> Iterator[None]:
        """Nothing that is there goes within the block. Raises WrongKey where the store has just become another one."""
        with locked(self.path, fcntl.LOCK_SH, None):
            self._check_mark()
            yield

    # ---- writing ------------------------------------------------------------------------------------------------

    @contextmanager
    def claimed(self, name: str) -> Iterator[int]:
        """The descriptor of a manifest that is being written, nobody else's.

        Raises ImageExists, StoreUnusable, OSError.
        """
        final, new = self._manifest_path(name), self.images / f"{name}{NEW}"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            claim(fd, new, name)
            if final.exists():
                raise ImageExists(f"there is an image {name!r} already", hint=f"gcr rm {name}")
            self._rehearse(new, self.images / f"{name}{PROBE}")
            yield fd
        finally:
            os.close(fd)

    def _rehearse(self, file: Path, probe: Path) -> None:
        """What not every file system can do, and `publish` will: found out before anything is written.

        Raises StoreUnusable, OSError.
        """
        probe.unlink(missing_ok=True)
        try:
            os.link(file, probe)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            text = f"the file system of {self.path} has no hard links, which name an image: {error.strerror}"
            raise StoreUnusable(text, hint="another folder as --store") from error
        probe.unlink()
        sync(self.images)

    def write_references(self, name: str, data: bytes) -> None:
        """Of an image that was claimed, as they are to be stored. Raises OSError."""
        write_file(self.path / references_path(name), data)

    def write_hashes(self, name: str, data: bytes) -> None:
        """The same."""
        write_file(self.path / hashes_path(name), data)

    def publish(self, name: str, manifest: bytes, claim: int) -> None:
        """As it is to be stored; everything that it names is synced. Raises ImageExists, OSError."""
        final, new = self._manifest_path(name), self.images / f"{name}{NEW}"
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

    def remove(self, names: Sequence[str], needed: Callable[[], Mapping[str, str]] | None = None) -> int:
        """These images, and what nobody else needs of theirs: bytes freed, fewer while others are at work.

        All or none are known: raises NoSuchImage, Damaged before anything is removed. Beside an image that cannot be
        read no chunk is taken away: who knows what that one needs.

        needed: images that jobs have nothing else than, and which jobs, so that they stay. It is asked while nobody
        writes, for one that is just being written becomes such an image. Raises ImageNeeded, StoreBusy.
        """
        paths = [self._manifest_path(name) for name in names]
        for path in paths:
            if not os.path.lexists(path):
                raise NoSuchImage(f"no image {path.name.removesuffix(MANIFEST)!r}", hint="gcr images")
            if path.is_dir():
                raise Damaged.of(path, "it is a folder", hint="remove it by hand")
        asked = needed if needed and any(map(self._is_only_copy, names)) else None
        try:
            with locked(self.path, fcntl.LOCK_EX, NEEDED_SECONDS if asked else 0.0):
                if asked:
                    _refuse_needed(names, asked())
                return self._removed(paths)
        except StoreBusy as error:
            if asked:
                raise
            log.info("%s: not cleaned up: %s", self.path, error)
        self._unlink_images(paths)
        return 0

    def _removed(self, paths: Sequence[Path]) -> int:
        """The lock is held. What cannot be read is found out before anything is gone."""
        try:
            needed = self._needed({*self.names()} - {path.name.removesuffix(MANIFEST) for path in paths})
        except (Damaged, WrongImage) as error:
            log.info("%s: not cleaned up: %s", self.path, error)
            self._unlink_images(paths)
            return 0
        self._unlink_images(paths)
        return self._clean(needed)

    def _unlink_images(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            self.pulse()
        sync(self.images)

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
        freed = sum(map(self._unlink, self._unfinished()))
        packs = ((FILE.match(path.name), path) for path in listed(self.packs))
        return freed + sum(self._unlink(path) for ours, path in packs if ours and ours[1] not in needed)

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
        return (path for path in self._unfinished() if not (path.name.endswith(ARRIVING) and _is_resumable(path)))

    def _unfinished(self) -> Iterator[Path]:
        names = set(self.names())
        yield from listed(self.packs, UNFINISHED)
        yield from listed(self.packs, ARRIVING)
        for path in listed(self.images):
            ours = OURS.match(path.name)
            if ours and (ours[1] not in names or path.name.endswith((NEW, PROBE))):
                yield path

    def _manifest_path(self, name: str) -> Path:
        return self.path / manifest_path(name)


def _refuse_needed(names: Iterable[str], needed: Mapping[str, str]) -> None:
    for name in names:
        if name in needed:
            text = f"image {name} is all that the suspended job {needed[name]} can come back from"
            raise ImageNeeded(text, hint=f"gcr restore {needed[name]}")


def manifest_of(name: str, stored: bytes, cipher: Cipher, place: object) -> Manifest:
    """The manifest of the image so called, `place`: of what the file here has. Raises Damaged, WrongImage."""
    found = Manifest.from_bytes(cipher.decrypt(manifest_path(name), stored, place), place)
    if found.name != name:
        raise Damaged.of(place, f"it is the manifest of {found.name}")
    return found


def chunk_sizes(manifest: Manifest) -> Iterator[int]:
    """In the order of the references."""
    for process in manifest.processes:
        for handle in process.table.handles:
            yield from (size for _, size in cut(handle.spec.size, manifest.chunk_bytes))


def references_bytes(manifest: Manifest) -> int:
    return _chunks_of(manifest) * references.RECORD_BYTES


def hashes_bytes(manifest: Manifest) -> int:
    return SECRET_BYTES + _chunks_of(manifest) * DIGEST_BYTES


def _chunks_of(manifest: Manifest) -> int:
    handles = (handle for process in manifest.processes for handle in process.table.handles)
    return sum(chunk_count(handle.spec.size, manifest.chunk_bytes) for handle in handles)


def _is_resumable(path: Path) -> bool:
    """A time to come is that of another clock, which is a little ahead; one far ahead would keep it for ever."""
    with suppress(FileNotFoundError):
        return abs(time.time() - path.lstat().st_mtime) < RESUMABLE_S
    return False
