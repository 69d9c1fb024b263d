"""A store as other nodes see it. It is only read, and never decrypted: no key is needed.

A pack is offered if its end has the seal that was asked for and it was not found damaged; the bytes before are compared
by the node that gets them. Of a pack that a pull of this node brings the runs are offered that the pull has compared.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct, field

from gcr.errors import UsageError
from gcr.image.chunks.entry import BLOCK
from gcr.image.disk.regular import bytes_at, open_file, read_file
from gcr.image.exchange.notes import Noted, Run
from gcr.image.exchange.wire import MOST_PACKS, MOST_RUNS, Look, LookPack, Told, ToldPack
from gcr.image.files.names import ahead_path, hashes_path, manifest_path, references_path, root_path
from gcr.image.files.smallfiles import MOST_BESIDE, MOST_MANIFEST
from gcr.image.pack.format import ARRIVING, DISTRUSTED, ID, NOTES, SUFFIX, Footer
from gcr.image.store.mark import MARK, MOST_MARK
from gcr.imageerrors import Damaged

_SMALL = re.compile(r"([a-z][a-z0-9._-]{0,62})\.(json|chunks|hashes|cut|ahead([1-9][0-9]{0,2}))\Z")
_PATHS = {"json": manifest_path, "chunks": references_path, "hashes": hashes_path, "cut": root_path}
_MOST_NOTED = 2 * MOST_PACKS  # notes that are kept open
_MOST_GIVEN = 4096  # runs of one pack that are remembered
_MOST_PACKS_GIVEN = 1024


class NotHere(Exception):
    """The store has nothing of that kind."""


class _Given(Struct):
    """The last runs of a pack that were sent. `first`: the number of the first of them."""

    first: int = 0
    runs: list[Run] = field(default_factory=list)

    def add(self, run: Run) -> None:
        self.runs.append(run)
        if len(self.runs) > _MOST_GIVEN:
            self.first += _MOST_GIVEN // 2
            del self.runs[: _MOST_GIVEN // 2]

    def since(self, number: int) -> tuple[list[Run], int]:
        """Returns the runs from this number on, and the next number. A later number is one of a former exchange."""
        end = self.first + len(self.runs)
        return (self.runs[max(0, number - self.first) :] if number <= end else [*self.runs]), end


class Offer:
    """Thread-safe. Everything raises NotHere, Damaged, OSError."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._packs = store / "packs"
        self._noted = OrderedDict[str, Noted]()
        self._given = OrderedDict[str, _Given]()
        self._lock = Lock()

    def close(self) -> None:
        while self._noted:
            self._noted.popitem()[1].close()

    def mark(self) -> bytes:
        """Returns the mark of the store."""
        with _or_not_here():
            return read_file(self.store / MARK, MOST_MARK)

    @contextmanager
    def small(self, name: str) -> Iterator[tuple[int, int]]:
        """Opens a small file, such as `night.json`; yields its descriptor and its size."""
        found = _SMALL.match(name)
        if not found:
            raise NotHere
        with _or_not_here():
            fd = open_file(
                self.store / (ahead_path(found[1], int(found[3])) if found[3] else _PATHS[found[2]](found[1]))
            )
        try:
            size = os.fstat(fd).st_size
            if size > max(MOST_MANIFEST, MOST_BESIDE):
                raise NotHere
            yield fd, size
        finally:
            os.close(fd)

    def told(self, look: Look) -> Told:
        """Returns what there is of the packs."""
        found = {}
        for pack, asked in [*look.packs.items()][:MOST_PACKS]:
            with suppress(NotHere, Damaged):
                found[pack] = self._told(pack, asked)
        return Told(found)

    @contextmanager
    def run(self, pack: str, seal: str, at: int, size: int) -> Iterator[int]:
        """Opens the file that has these bytes of a pack, all of them compared or to be compared by their seal."""
        fd = self._opened(pack, seal, at, size)
        try:
            yield fd
        finally:
            os.close(fd)

    def give(self, pack: str, at: int, size: int) -> None:
        """Notes that these bytes are being sent."""
        with self._lock:
            self._given.setdefault(pack, _Given()).add((at, size))
            self._given.move_to_end(pack)
            while len(self._given) > _MOST_PACKS_GIVEN:
                self._given.popitem(last=False)

    def _told(self, pack: str, asked: LookPack) -> ToldPack:
        if not ID.match(pack):
            raise NotHere
        life, runs, whole = "", list[Run](), asked.whole
        if not whole:
            with suppress(NotHere, Damaged):
                os.close(self._opened_whole(pack, asked.seal))
                whole = True
        with self._lock:
            given, given_at = self._given.get(pack, _Given()).since(asked.given)
            if not whole and (noted := self._notes(pack, asked.seal)):
                life = noted.life
                runs = [*noted.runs(asked.runs if asked.life == life else 0, MOST_RUNS)]
        if not (whole or life or given):
            raise NotHere
        return ToldPack(whole=whole, life=life, runs=runs, given=given, given_at=given_at)

    def _opened(self, pack: str, seal: str, at: int, size: int) -> int:
        if not ID.match(pack):
            raise NotHere
        with suppress(NotHere):
            return self._opened_whole(pack, seal, at + size)
        with self._lock:
            noted = self._notes(pack, seal)
            if not noted or not noted.cover(at, size):
                raise NotHere
            with _or_not_here():
                return open_file(self._packs / f"{pack}{ARRIVING}")

    def _opened_whole(self, pack: str, seal: str, least: int = 0) -> int:
        """Opens a finished pack of `least` bytes or more that has this seal."""
        path = self._packs / f"{pack}{SUFFIX}"
        if path.with_suffix(DISTRUSTED).exists():
            raise NotHere
        with _or_not_here():
            fd = open_file(path)
        try:
            size = os.fstat(fd).st_size
            footer = Footer.from_bytes(bytes(bytes_at(fd, max(0, size - BLOCK), BLOCK)))
            if size < max(least, 2 * BLOCK) or not footer.is_sealed(bytes.fromhex(seal)):
                raise NotHere
        except ValueError:  # the seal is no hexadecimal number
            os.close(fd)
            raise NotHere from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _notes(self, pack: str, seal: str) -> Noted | None:
        """Returns the notes of a pull at work that brings this pack. The lock is held."""
        noted = self._noted.get(pack)
        if noted and not noted.are_kept():
            self._noted.pop(pack).close()
            noted = None
        if not noted:
            with suppress(FileNotFoundError, Damaged):
                noted = Noted(self._packs / f"{pack}{NOTES}")
                self._keep(pack, noted)
        return noted if noted and noted.seal.hex() == seal and noted.are_kept() else None

    def _keep(self, pack: str, noted: Noted) -> None:
        self._noted[pack] = noted
        while len(self._noted) > _MOST_NOTED:
            self._noted.popitem(last=False)[1].close()


@contextmanager
def _or_not_here() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, UsageError):
        raise NotHere from None
