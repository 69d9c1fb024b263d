"""Pulls an image of a store elsewhere into this store, its manifest last.

No file is trusted before it was compared: the manifest with its digest, references and hashes with the manifest's
digests, every byte of a pack with its seal. Then it is synced and named, in the order of any commit (store/claim.py).
So a crash leaves a whole image, or none.

If the image is here already, its damaged files are brought again.

The image is marked as one from elsewhere, and no image builds upon it (write/parent.py): only the digest that came with
its hashes vouches for them.

A pack comes under a name of its own, its end first. The end says which chunks belong where. So the next pull keeps the
right chunks of an unfinished pack and brings the rest. The next clean-up removes the files of a pull that died; the
writer of another image leaves them for a day.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from gcr.image.chunks.entry import BLOCK
from gcr.image.chunks.index import Run
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.disk.durable import sync, write_file
from gcr.image.disk.failing import usable
from gcr.image.disk.locking import POLL, is_named
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import manifest_path, references_path
from gcr.image.files.references import References
from gcr.image.files.smallfiles import MOST_MANIFEST, SmallFile, files_beside, manifest_of
from gcr.image.pack.format import ARRIVING, Pack
from gcr.image.pack.reader import PackReader
from gcr.image.read.places import checked_places
from gcr.image.remote.folder import remote_at
from gcr.image.remote.push import Moved
from gcr.image.remote.remote import Remote, pack_path
from gcr.image.remote.transfer import PART, Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

_AGAIN = "push it again"


def pull(folder: Path, name: str, url: str, transfer: Transfer, cipher: Cipher = PLAIN) -> Moved:
    """Pulls an image into the store in this folder; it is there, whole, and outlives a crash when this returns.

    Raises NoSuchImage, ImageExists, WrongImage, WrongKey, Damaged, StoreUnusable, LibraryMissing, UsageError,
    DeadlinePassed.
    """
    remote = remote_at(url, cipher)
    theirs = remote.read(manifest_path(name), MOST_MANIFEST)
    if theirs is None:
        raise NoSuchImage(f"no image {name!r} at {remote.url}", hint="a push that was cut short can be made again")
    remote.check_mark()
    manifest = manifest_of(name, theirs, cipher, remote.address(manifest_path(name)))
    store = Store(folder, cipher, transfer.pulse)
    with usable(store.path), store.used():
        if store.images.is_there(manifest):
            missing = _bring_packs(store, manifest, remote, transfer)
            _mend_beside(store, manifest, remote)
            store.packs.refuse_distrusted(manifest.packs)
            sync(store.images.folder)  # its writer may have died before its sync
        else:
            (found, said), (hashed, _) = (_read(remote, file) for file in files_beside(manifest))
            with store.claimed(name) as claim:
                missing = _bring_packs(store, manifest, remote, transfer)
                _refuse_misplaced(store, manifest, said, remote)
                claim.write_references(found)
                claim.write_hashes(hashed)
                store.packs.refuse_distrusted(manifest.packs)
                claim.publish(theirs, pulled=True)
    sizes = [pack.bytes for pack in manifest.packs]
    return Moved(len(sizes), sum(sizes), len(missing), transfer.moved)


def _read(remote: Remote, file: SmallFile) -> tuple[bytes, bytes]:
    """Returns a small file as it is stored, and decrypted, compared with the manifest. Raises Damaged, WrongImage."""
    address = remote.address(file.path)
    found = remote.read(file.path, file.most)
    try:
        said = file.said(found, remote.cipher, address)
    except Damaged as error:
        raise Damaged.of(address, "it is not what was pushed", hint=_AGAIN) from error
    assert found is not None
    return found, said


def _refuse_misplaced(store: Store, manifest: Manifest, references: bytes, remote: Remote) -> None:
    """Raises Damaged if a chunk is not where the references say: a digest does not vouch for that."""
    try:
        checked_places(store, manifest, References(references), [store.packs.reader(pack) for pack in manifest.packs])
    except Damaged as error:
        text = "a chunk is not where it says"
        raise Damaged.of(remote.address(references_path(manifest.name)), text, hint=_AGAIN) from error


def _bring_packs(store: Store, manifest: Manifest, remote: Remote, transfer: Transfer) -> Sequence[Pack]:
    """Brings the packs that are not here, or are damaged. Raises Damaged if another pack here has the id of one."""
    missing = [pack for pack in manifest.packs if not store.packs.has(pack)]
    transfer.total = sum(pack.bytes for pack in missing)
    transfer.each(lambda pack: _Coming(store, pack, remote, transfer, transfer.at_once(len(missing))).bring(), missing)
    sync(store.packs.folder)
    return missing


def _mend_beside(store: Store, manifest: Manifest, remote: Remote) -> None:
    """Brings the references and hashes of an image that is here if they are damaged.

    Raises ImageExists if another process holds its name, NoSuchImage if it was removed meanwhile.
    """
    if not (damaged := [file for file in files_beside(manifest) if not _is_whole(store, manifest, file)]):
        return
    name = manifest.name
    with store.held(name) as claim:
        try:
            if not store.images.is_there(manifest):
                raise NoSuchImage(f"image {name!r} was removed just now", hint="the same again")
            for file in damaged:
                write_file(store.path / file.path, _read(remote, file)[0])
        finally:
            claim.withdraw()


def _is_whole(store: Store, manifest: Manifest, file: SmallFile) -> bool:
    try:
        store.images.read_beside(manifest, file)
    except Damaged:
        return False
    return True


class _Coming(Struct, frozen=True):
    """A pack on its way. Raises Damaged, WrongImage, StoreUnusable, OSError."""

    store: Store
    pack: Pack
    remote: Remote
    transfer: Transfer
    at_once: int  # requests

    def bring(self) -> None:
        with self._unfinished() as (path, fd):
            if self.store.packs.has(self.pack):  # another pull has brought it
                path.unlink()
                return
            try:
                self._fill(path, fd)
                _sync_or_forget(fd, path)
                self._check(path)
            except WrongImage:
                path.unlink()
                raise
            except Damaged as error:
                path.unlink()
                raise self._damaged() from error
            self.store.packs.take(path, self.pack)

    @contextmanager
    def _unfinished(self) -> Iterator[tuple[Path, int]]:
        """Opens and locks the unfinished file; waits for another pull that brings the same pack."""
        path = self.store.packs.folder / f"{self.pack.id}{ARRIVING}"
        while True:
            self.transfer.check()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if _is_ours(fd, path):
                    os.utime(fd)  # it is wanted, even if no byte comes this time
                    yield path, fd
                    return
            finally:
                os.close(fd)
            time.sleep(POLL)

    def _fill(self, path: Path, fd: int) -> None:
        begun = self._is_begun(path)
        if not begun:
            self._begin(fd)
        reader = PackReader(path, self.store.cipher, self.pack.seal)
        missing = [(0, BLOCK)]
        for run in reader.runs(0, len(reader.chunks), PART):
            block, size = reader.extent(run)
            if begun and self._has(reader, run):
                self.transfer.skip(size)
            else:
                missing.append((block * BLOCK, size))
        self.transfer.each(lambda part: self._fetch(fd, *part), missing, self.at_once)

    def _has(self, reader: PackReader, run: Run) -> bool:
        """Returns whether an earlier pull has brought these chunks."""
        self.transfer.check()
        try:
            reader.read(run, memoryview(bytearray(run.size)))
        except Damaged:
            return False
        return True

    def _is_begun(self, path: Path) -> bool:
        """Returns whether the end is there, by which the rest can be compared."""
        try:
            PackReader(path, self.store.cipher, self.pack.seal)
        except Damaged:
            return False
        return True

    def _begin(self, fd: int) -> None:
        """Brings the end, from the index on: a file as long as the pack has all of the end."""
        if self.remote.size(pack_path(self.pack)) != self.pack.bytes:
            raise self._damaged()
        footer = self.remote.footer(self.pack, self.pack.bytes)
        if not footer.is_sealed(self.pack.seal) or not footer.bounds(self.pack.bytes):
            raise self._damaged()
        os.ftruncate(fd, 0)
        for at in range(footer.index_at(), self.pack.bytes, PART):
            self._fetch(fd, at, min(PART, self.pack.bytes - at))

    def _fetch(self, fd: int, at: int, size: int) -> None:
        self.transfer.check()
        rest = self.remote.part(pack_path(self.pack), at, size)
        while rest:
            done = os.pwritev(fd, [rest], at)
            at, rest = at + done, rest[done:]
        self.transfer.add(size)

    def _check(self, path: Path) -> None:
        """Compares every byte. Raises Damaged, OSError."""
        for _ in PackReader(path, self.store.cipher, self.pack.seal).check():
            self.transfer.check()

    def _damaged(self) -> Damaged:
        address = self.remote.address(pack_path(self.pack))  # a push compares only size and end
        return Damaged.of(address, "it is not what was pushed", hint=f"remove {address}, and push the image again")


def _is_ours(fd: int, path: Path) -> bool:
    """Returns whether this process has locked the file, and the file still has this name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return is_named(fd, path)


def _sync_or_forget(fd: int, path: Path) -> None:
    """Syncs a file, or removes it: after a failure its bytes are unknown, and the next sync would succeed.

    Raises OSError.
    """
    try:
        os.fsync(fd)
    except OSError:
        path.unlink()
        raise
