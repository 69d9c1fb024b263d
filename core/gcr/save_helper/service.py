"""The operations of a save helper: `lend_region` …, then `write_share`. gcr.checkpoints.helper is their other end."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field

from gcr.checkpoints.operations import LendRegion, Placed, Ready, WriteShare
from gcr.checkpoints.region import Region
from gcr.checkpoints.share import File, Share, write_files
from gcr.errors import UsageError
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.crypto.key import lent_key
from gcr.image.disk.failing import usable
from gcr.image.store.store import Store
from gcr.protocol.batches import Incoming
from gcr.protocol.operations.operation import Answer, Dispatcher


class SaveService(Struct):
    """One save helper. `_regions`: those lent for the next share, by number."""

    _regions: dict[int, Region] = field(default_factory=dict)
    _sizes: dict[int, list[int]] = field(default_factory=dict)  # of the segments that have come
    _arriving: Incoming = field(default_factory=Incoming)

    @property
    def operations(self) -> Dispatcher:
        return Dispatcher(
            "a save helper",
            {
                Ready: lambda _asked, _fds, _request: None,
                LendRegion: lambda asked, fds, _request: self._lend(asked, fds),
                WriteShare: lambda asked, fds, _request: Answer(self._write(asked, fds)),
            },
        )

    def _lend(self, asked: LendRegion, fds: list[int]) -> None:
        """Maps a region once all of its segments have come. Raises NotASegment, RolledBack, UsageError, OSError."""
        region = Region(asked.nbytes, holds=False)  # the program ends its holds
        if asked.offset == 0:
            self._sizes[asked.number] = []
        self._sizes[asked.number] += asked.sizes
        arrived = self._arriving.add(asked.number, fds, asked.offset, asked.total)
        if arrived is not None:
            region.fill(self._sizes.pop(asked.number), arrived)
            self._regions[asked.number] = region

    def _write(self, asked: WriteShare, fds: Sequence[int]) -> Share:
        """Raises StoreUnusable, UnsafeRuntime, WrongKey, UsageError."""
        regions, self._regions = self._regions, {}
        path = Path(asked.store)
        with usable(path):
            store = Store(path, cipher_of(lent_key(fds, asked.encrypted)))
        files = _files(asked.files, regions)
        return write_files(store, asked.image, files, asked.chunk_bytes, asked.threads, asked.going, asked.packing)


def _files(placed: Sequence[Placed], regions: dict[int, Region]) -> Iterator[File]:
    """Yields the files. Raises UsageError for one that lies outside of the regions."""
    for name, number, offset, size in placed:
        region = regions.get(number)
        if size and (region is None or offset + size > region.nbytes):
            raise UsageError(f"{name} lies in no memory that was lent")
        yield name, memoryview(region.memory(offset, size)).cast("B") if region and size else memoryview(b"")
