"""Reads a step: its record, and byte ranges of its files. No byte is handed on before its chunk was compared."""

from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from gcr.checkpoints.run import Run
from gcr.checkpoints.steps import RECORD
from gcr.errors import UsageError
from gcr.image.disk.bounce import huge_buffer
from gcr.image.read.fetching import GROUP_BYTES
from gcr.image.read.reader import ImageReader, Reading
from gcr.imageerrors import Damaged, WrongImage

READ_BYTES = GROUP_BYTES  # of chunks that are read from the disk at once


def memory_for(nbytes: int) -> memoryview:
    """Returns fresh memory that a disk is read into fast: on huge pages, if the system has some. Raises OSError."""
    return huge_buffer(nbytes)


class Step:
    """A step that is read within the `with` block, which keeps its files. Several threads may read at once."""

    def __init__(self, run: Run, step: int, threads: int = 4) -> None:
        """`threads`: that compare. Raises NoSuchImage, Damaged, WrongImage, StoreUnusable, WrongKey, UsageError."""
        run.bring(step)  # makes no store in an empty folder
        self.run, self.number = run, step
        self._reader = ImageReader(run.store(), run.image(step), threads)

    def __enter__(self) -> Self:
        """Raises as the constructor; WrongImage for an image that is no training checkpoint."""
        self._reader.__enter__()
        if RECORD not in self._reader.files:
            self._reader.__exit__()
            raise WrongImage(f"image {self._reader.name} is no training checkpoint")
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.__exit__(*error)

    @property
    def progress(self) -> Mapping[str, int]:
        """Returns `step`, and `world`, the number of ranks that saved it."""
        return self._reader.manifest.source.progress

    @property
    def record(self) -> bytes:
        """Returns what the coordinator wrote about the files. Raises Damaged, StoreUnusable."""
        return bytes(self.read(RECORD, 0, self.size(RECORD)))

    def size(self, file: str) -> int:
        """Returns the bytes of a file. Raises Damaged: the record names it."""
        if file not in self._reader.files:
            raise Damaged.of(self._reader.name, f"it has no file {file!r}, which its record names")
        return self._reader.files[file][1].bytes

    @property
    def chunk_bytes(self) -> int:
        return self._reader.manifest.chunk_bytes

    def read(self, file: str, begin: int, end: int) -> memoryview:
        """Returns the bytes of a file from `begin` up to `end`, in fresh memory. Raises Damaged, StoreUnusable."""
        return self.begin(file, begin, end, memoryview(bytearray(self.room(file, begin, end)))).result()

    def room(self, file: str, begin: int, end: int) -> int:
        """Returns the bytes of the chunks that have these bytes of a file. Raises Damaged, UsageError."""
        first, until = self._chunks(file, begin, end)
        return until - first

    def begin(self, file: str, begin: int, end: int, room: memoryview) -> "Bytes":
        """Begins to read the bytes of a file from `begin` up to `end`. Several ranges may be under way.

        room: memory for the chunks that have them, `room()` bytes at least; the disk is read into it where it can be
        A range that begins at a multiple of a power of two, up to 16, will be at such an address, as `room` is.
        Raises Damaged, UsageError.
        """
        first, until = self._chunks(file, begin, end)
        reading = self._reader.begin_chunks(file, first // self.chunk_bytes, room[: until - first])
        return Bytes(reading, room[begin - first : end - first])

    def _chunks(self, file: str, begin: int, end: int) -> tuple[int, int]:
        """Returns where the chunks begin and end, in bytes, that have these bytes."""
        size, chunk = self.size(file), self.chunk_bytes
        if not 0 <= begin <= end <= size:
            raise UsageError(f"file {file!r} of {size} bytes has no bytes from {begin} to {end}")
        first = begin // chunk * chunk
        return first, first if begin == end else min(size, -(-end // chunk) * chunk)


class Bytes(Struct, frozen=True):
    """Bytes of a file that are being read. One of its methods must be called before their memory is used otherwise."""

    reading: Reading
    memory: memoryview

    def result(self) -> memoryview:
        """Waits for the bytes, and returns them, compared. Raises Damaged, StoreUnusable."""
        self.reading.result()
        return self.memory

    def stop(self) -> None:
        """Reads no more, and waits until nothing is written to the memory."""
        self.reading.stop()
