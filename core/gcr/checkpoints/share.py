"""The share of one rank in a step: files that it writes into a pack, before any manifest names them."""

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from gcr.faults import reach
from gcr.hashing.chunks import CHUNK_BYTES, check_chunk_bytes
from gcr.image.files.imagedfile import ImagedFile
from gcr.image.pack.pace import Packing
from gcr.image.store.store import Store
from gcr.image.write.part import Part, PartWriter

THREADS = 4  # of each rank
DEFAULT_CHUNK_BYTES = CHUNK_BYTES

File = tuple[str, memoryview]  # name and bytes


class Share(Struct, frozen=True):
    """The share of one rank in a step: its files, in the order of the part's chunks."""

    part: Part
    files: Sequence[ImagedFile]


def write_files(
    store: Store,
    image: str,
    files: Iterable[File],
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    threads: int = THREADS,
    going: Collection[str] = (),
    packing: Packing = "plain",
) -> Share:
    """Writes files of one rank into the store; they are durable when this returns, and part of no step yet.

    A file is asked for when there is work for a thread; its bytes must not change from then on. Names are unique among
    the files of all ranks. The coordinator has begun the step, which is to be this image.

    going: images that go once the step is saved; they are no reason to use a pack of theirs
    packing: whether the chunks are compressed

    Raises StoreUnusable, LibraryMissing, and the errors of the files.
    """
    check_chunk_bytes(chunk_bytes)
    taken: list[ImagedFile] = []

    def noted() -> Iterable[tuple[ImagedFile, memoryview]]:
        for name, memory in files:
            taken.append(ImagedFile(name, len(memory)))
            yield taken[-1], memory

    tools = PartWriter(store, image, threads=threads, chunk_bytes=chunk_bytes, going=going, packing=packing)
    with tools as writer:
        writer.add_files(noted())
        reach("checkpoint.share_written")
        part = writer.finish()
    reach("checkpoint.share_finished")
    return Share(part, taken)
