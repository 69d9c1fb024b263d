"""Reads a step: its record, and byte ranges of its files. No byte is handed on before its chunk was compared."""

from collections.abc import Mapping
from typing import Self

from gcr.checkpoints.run import Run
from gcr.checkpoints.steps import RECORD
from gcr.errors import UsageError
from gcr.image.read.reader import ImageReader
from gcr.imageerrors import Damaged, WrongImage


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

    def read(self, file: str, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """Returns the bytes of a file from `begin` up to `end`. Reads the chunks that have them.

        room: memory to read into where it has as many bytes as those chunks; else the bytes are in fresh memory
        A range that begins at a multiple of a power of two, up to 16, is in memory at such an address, as `room` is.
        Raises Damaged, StoreUnusable, UsageError.
        """
        size, chunk = self.size(file), self._reader.manifest.chunk_bytes
        if not 0 <= begin <= end <= size:
            raise UsageError(f"file {file!r} of {size} bytes has no bytes from {begin} to {end}")
        if begin == end:
            return memoryview(bytearray())
        first, until = begin // chunk, min(size, -(-end // chunk) * chunk)
        size = until - first * chunk
        found = room[:size] if room and len(room) >= size else memoryview(bytearray(size))
        self._reader.read_chunks(file, first, found)
        return found[begin - first * chunk : end - first * chunk]
