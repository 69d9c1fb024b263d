"""Pulls an image of a store elsewhere into this store, its manifest last.

No file is trusted before it was compared: the manifest with its digest, references and hashes with the manifest's
digests, every byte of a pack with its seal. Then it is synced and named, in the order of any commit (store/claim.py).
So a crash leaves a whole image, or none.

If the image is here already, its damaged files are brought again.

The root of an image over nodes comes with its part, after the manifest. Without it the part counts for nothing. So a
pull that dies in between leaves no image over nodes, and the next one brings the root.

The image is marked as one from elsewhere, and no image builds upon it (write/parent.py): only the digest that came with
its hashes vouches for them.

A pack comes under a name of its own (arriving.py). The next clean-up removes the files of a pull that died; the writer
of another image leaves them for a day.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gcr.cutroot import MOST as MOST_OF_A_ROOT
from gcr.cutroot import Root
from gcr.image.chunks.entry import BLOCK
from gcr.image.crypto.cipher import PLAIN, Cipher
from gcr.image.disk.durable import sync, write_file
from gcr.image.disk.failing import usable, with_room
from gcr.image.files.manifest import Manifest
from gcr.image.files.names import manifest_path, references_path, root_path
from gcr.image.files.references import References
from gcr.image.files.roots import may_have_root, root_in
from gcr.image.files.smallfiles import MOST_MANIFEST, SmallFile, files_beside, manifest_of, references_file
from gcr.image.pack.format import Pack
from gcr.image.pack.reader import PackReader
from gcr.image.read.places import Places, checked_places
from gcr.image.remote.arriving import Arriving, put
from gcr.image.remote.folder import remote_at
from gcr.image.remote.push import Moved
from gcr.image.remote.remote import Remote, pack_path
from gcr.image.remote.transfer import PART, Transfer
from gcr.image.store.store import Store
from gcr.imageerrors import Damaged, NoSuchImage, WrongImage

_AGAIN = "push it again"


class Source(Protocol):
    """A place that one image is pulled from. Calls raise what `pull` raises."""

    def manifest(self) -> tuple[Manifest, bytes]:
        """Returns the manifest, and the bytes of its file."""

    def small(self, file: SmallFile) -> tuple[bytes, bytes]:
        """Returns a small file as it is stored, and decrypted, compared with the manifest."""

    def root(self, manifest: Manifest) -> Root | None:
        """Returns the root of which the image is a part, compared with its manifest; None where there is none."""

    def address(self, path: str) -> str:
        """Returns the address of a file, for errors."""

    def has(self, store: Store, pack: Pack) -> bool:
        """Returns whether the pack is in the store, and was not found damaged. Raises as Packs.has."""

    def bring(self, store: Store, missing: Sequence[Pack], transfer: Transfer) -> None:
        """Brings packs, whole and compared, under their names in the store; the caller syncs the names."""

    def has_placed(self, references: bytes) -> bool:
        """Returns whether each chunk was found where these references say, while the packs came."""


def pull(folder: Path, name: str, url: str, transfer: Transfer, cipher: Cipher = PLAIN) -> Moved:
    """Pulls an image into the store in this folder; it is there, whole, and outlives a crash when this returns.

    Raises NoSuchImage, ImageExists, WrongImage, WrongKey, Damaged, StoreUnusable, NoRoom, LibraryMissing, UsageError,
    DeadlinePassed. After NoRoom what came stays for the next pull, as after a kill.
    """
    return pull_from(Elsewhere(remote_at(url, cipher), name), folder, transfer, cipher)


def pull_from(source: Source, folder: Path, transfer: Transfer, cipher: Cipher) -> Moved:
    """Pulls the image of a source, as `pull` does."""
    manifest, theirs = source.manifest()
    with usable(folder), with_room(folder, lambda: transfer.left), opened(folder, transfer, cipher) as store:
        root = _missing_root(store, manifest, source)
        if store.images.is_there(manifest):
            missing = _bring_packs(store, manifest, source, transfer)
            _mend_beside(store, manifest, source, root)
            store.packs.refuse_distrusted(manifest.packs)
            sync(store.images.folder)  # its writer may have died before its sync
        else:
            (found, said), (hashed, _) = (source.small(file) for file in files_beside(manifest))
            with store.claimed(manifest.name) as claim:
                missing = _bring_packs(store, manifest, source, transfer)
                claim.write_references(found)  # while another thread may still compare the places
                claim.write_hashes(hashed)
                if not source.has_placed(said):
                    _refuse_misplaced(store, manifest, said, source)
                store.packs.refuse_distrusted(manifest.packs)
                claim.publish(theirs, pulled=True)
                if root:
                    store.roots.keep(root, manifest.name)
        rooted = store.roots.of(manifest) is not None if may_have_root(manifest.name) else None
    sizes = [pack.bytes for pack in manifest.packs]
    return Moved(len(sizes), sum(sizes), len(missing), transfer.moved, rooted)


@contextmanager
def opened(folder: Path, transfer: Transfer, cipher: Cipher) -> Iterator[Store]:
    """Opens the store, which is made if there is none, and keeps its files within the block."""
    store = Store(folder, cipher, transfer.pulse)
    with store.used():
        yield store


class Elsewhere(Struct, frozen=True):
    """The image `name` of a store elsewhere."""

    remote: Remote
    name: str

    def manifest(self) -> tuple[Manifest, bytes]:
        theirs = self.remote.read(manifest_path(self.name), MOST_MANIFEST)
        if theirs is None:
            hint = "a push that was cut short can be made again"
            raise NoSuchImage(f"no image {self.name!r} at {self.remote.url}", hint=hint)
        self.remote.check_mark()
        return manifest_of(self.name, theirs, self.remote.cipher, self.address(manifest_path(self.name))), theirs

    def small(self, file: SmallFile) -> tuple[bytes, bytes]:
        address = self.address(file.path)
        found = self.remote.read(file.path, file.most)
        try:
            said = file.said(found, self.remote.cipher, address)
        except Damaged as error:
            raise Damaged.of(address, "it is not what was pushed", hint=_AGAIN) from error
        assert found is not None
        return found, said

    def root(self, manifest: Manifest) -> Root | None:
        path = root_path(self.name)
        found = self.remote.read(path, MOST_OF_A_ROOT)
        return None if found is None else root_in(found, manifest, self.address(path))

    def address(self, path: str) -> str:
        return self.remote.address(path)

    def has(self, store: Store, pack: Pack) -> bool:
        return store.packs.has(pack)

    def bring(self, store: Store, missing: Sequence[Pack], transfer: Transfer) -> None:
        at_once = transfer.at_once(len(missing)) if missing else 0

        def bring(pack: Pack) -> None:
            _Coming(Arriving(store, pack, transfer.check), self.remote, transfer, at_once).bring()

        transfer.each(bring, missing)

    def has_placed(self, references: bytes) -> bool:
        return False


def _refuse_misplaced(store: Store, manifest: Manifest, references: bytes, source: Source) -> None:
    """Raises Damaged if a chunk is not where the references say: a digest does not vouch for that."""
    try:
        checked_places(store, manifest, References(references), [store.packs.reader(pack) for pack in manifest.packs])
    except Damaged as error:
        text = "a chunk is not where it says"
        raise Damaged.of(source.address(references_path(manifest.name)), text, hint=_AGAIN) from error


def placed(
    store: Store, manifest: Manifest, stored: bytes | None, packs: Sequence[PackReader], checked: Places | None = None
) -> bytes:
    """Returns the references of the file `stored`. `checked`: see Places.check.

    Raises Damaged unless each chunk is where they say.
    """
    file = references_file(manifest)
    references = file.said(stored, store.cipher, file.path)
    checked_places(store, manifest, References(references), packs, checked)
    return references


def _bring_packs(store: Store, manifest: Manifest, source: Source, transfer: Transfer) -> Sequence[Pack]:
    """Brings the packs that are not here, or are damaged. Raises Damaged if another pack here has the id of one."""
    missing = [pack for pack in manifest.packs if not source.has(store, pack)]
    transfer.total += sum(pack.bytes for pack in missing)
    source.bring(store, missing, transfer)
    sync(store.packs.folder)
    return missing


def _missing_root(store: Store, manifest: Manifest, source: Source) -> Root | None:
    """Returns the root of the image from elsewhere, if it may have one that is not here. Raises Damaged."""
    if not may_have_root(manifest.name) or store.roots.of(manifest):
        return None
    return source.root(manifest)


def _mend_beside(store: Store, manifest: Manifest, source: Source, root: Root | None) -> None:
    """Brings the references and hashes of an image that is here if they are damaged; keeps the root that it lacked.

    Raises ImageExists if another process holds its name, NoSuchImage if it was removed meanwhile.
    """
    damaged = [file for file in files_beside(manifest) if not _is_whole(store, manifest, file)]
    if not (damaged or root):
        return
    name = manifest.name
    with store.held(name) as claim:
        try:
            if not store.images.is_there(manifest):
                raise NoSuchImage(f"image {name!r} was removed just now", hint="the same again")
            for file in damaged:
                write_file(store.path / file.path, source.small(file)[0])
            if root:
                store.roots.keep(root, name)
        finally:
            claim.withdraw()


def _is_whole(store: Store, manifest: Manifest, file: SmallFile) -> bool:
    try:
        store.images.read_beside(manifest, file)
    except Damaged:
        return False
    return True


class _Coming(Struct, frozen=True):
    """A pack on its way from a store elsewhere. Raises Damaged, WrongImage, StoreUnusable, OSError."""

    arriving: Arriving
    remote: Remote
    transfer: Transfer
    at_once: int  # requests

    @property
    def _pack(self) -> Pack:
        return self.arriving.pack

    def bring(self) -> None:
        packs, path = self.arriving.store.packs, self.arriving.path
        with self.arriving.opened() as fd:
            if packs.has(self._pack):  # another pull has brought it
                path.unlink()
                return
            try:
                self._fill(fd)
                self.arriving.sync(fd)
                self.arriving.compare()
            except WrongImage:
                path.unlink()
                raise
            except Damaged as error:
                path.unlink()
                raise self._damaged() from error
            packs.take(path, self._pack)

    def _fill(self, fd: int) -> None:
        begun = self.arriving.is_begun()
        if not begun:
            self._begin(fd)
        reader = self.arriving.reader()
        missing = [(0, BLOCK)]
        for run in reader.runs(0, len(reader.chunks), PART):
            block, size = reader.extent(run)
            if begun and self.arriving.has(reader, run):
                self.transfer.skip(size)
            else:
                missing.append((block * BLOCK, size))
        self.transfer.each(lambda part: self._fetch(fd, *part), missing, self.at_once)

    def _begin(self, fd: int) -> None:
        """Brings the end, from the index on: a file as long as the pack has all of the end."""
        if self.remote.size(pack_path(self._pack)) != self._pack.bytes:
            raise self._damaged()
        footer = self.remote.footer(self._pack, self._pack.bytes)
        if not footer.is_sealed(self._pack.seal) or not footer.bounds(self._pack.bytes):
            raise self._damaged()
        os.ftruncate(fd, 0)
        for at in range(footer.index_at(), self._pack.bytes, PART):
            self._fetch(fd, at, min(PART, self._pack.bytes - at))

    def _fetch(self, fd: int, at: int, size: int) -> None:
        self.transfer.check()
        put(fd, at, self.remote.part(pack_path(self._pack), at, size))
        self.transfer.add(size)

    def _damaged(self) -> Damaged:
        address = self.remote.address(pack_path(self._pack))  # a push compares only size and end
        return Damaged.of(address, "it is not what was pushed", hint=f"remove {address}, and push the image again")
