"""Host memory of a job that moves, added to the image of a round while the job runs.

CRIU saves that memory within the stop. A chunk that is the same then is in the store, and at the target, by its name.
So it is neither stored nor sent within the stop. Nothing is restored from the files of a round: CRIU's files have all.
"""

import logging
import mmap
import time
from collections.abc import Iterator, Sequence

from gcr.criu.running import Memory, Window, memories
from gcr.image.disk.threads import groups
from gcr.image.files.imagedfile import ImagedFile, name_of_memory
from gcr.image.write.writer import ImageWriter

log = logging.getLogger("gcr.image")

PIECE_BYTES = 32 << 20  # that are read together; nothing is read while they are named and written
REST = 3  # times the seconds of a read pass until the next one: a program that maps and unmaps may wait for a read


def add_host_memory(writer: ImageWriter, root: int) -> Sequence[ImagedFile]:
    """Adds the memory of a process and its descendants, and returns its pieces for the manifest.

    Adds less, or nothing, where the kernel does not show it; the log says why. Raises StoreUnusable.
    """
    began, added = time.monotonic(), list[ImagedFile]()
    buffer = memoryview(mmap.mmap(-1, max(PIECE_BYTES, writer.chunk_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    try:
        with memories(root, writer.chunk_bytes) as found:
            for name, memory, windows in _pieces(found):
                sizes = tuple(window.size for window in windows)
                file, begin = ImagedFile(name, sum(sizes), sizes), time.monotonic()
                _read(memory, windows, buffer[: file.bytes])
                read = time.monotonic()
                writer.add_file(file, buffer[: file.bytes])
                added.append(file)
                time.sleep(max(0.0, read + REST * (read - begin) - time.monotonic()))
    except OSError as error:  # of the kernel: one of the store has another type
        log.warning("image %s: host memory of process %d is not read ahead of the stop: %s", writer.name, root, error)
    total = sum(file.bytes for file in added)
    log.info("image %s: %d bytes of host memory in %.2f s", writer.name, total, time.monotonic() - began)
    return added


def _pieces(found: Iterator[Memory]) -> Iterator[tuple[str, Memory, Sequence[Window]]]:
    """Yields windows of one memory that are read together, and a name for them."""
    for memory in found:
        for number, windows in enumerate(groups(memory.windows, lambda window: window.size, PIECE_BYTES)):
            yield name_of_memory(memory.name, number), memory, windows


def _read(memory: Memory, windows: Sequence[Window], into: memoryview) -> None:
    """Reads windows. One that is gone by now is filled with zeros, which no store keeps."""
    at = 0
    for window in windows:
        part = into[at : at + window.size]
        if not memory.read(window, part):
            part[:] = bytes(window.size)
        at += window.size
