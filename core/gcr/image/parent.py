"""The image before: the last one of the same processes, and what has changed since.

An image needs no other one: chunks are found by their names, whoever wrote them. The parent only says how much of a job
changes from one image to the next.
"""

from collections.abc import Iterable, Iterator, Sequence

from gcr.errors import Damaged
from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks import cut
from gcr.image.manifest import Manifest
from gcr.image.store import Store
from gcr.layout import SealedTable

Place = tuple[int, int, int]  # of a chunk: process, allocation, offset in it


def parent_of(store: Store, tables: Sequence[SealedTable]) -> Manifest | None:
    """The newest image of one of these very processes."""
    ours = {(table.pid, table.start_time) for table in tables}
    theirs = (m for m in store.readable() if ours & {(each.table.pid, each.table.start_time) for each in m.processes})
    return max(theirs, key=lambda manifest: manifest.created, default=None)


def bytes_changed(store: Store, parent: Manifest, tables: Sequence[SealedTable], names: Sequence[bytes]) -> int | None:
    """In the chunks of these names, in the order of the tables, that the parent has not at the same place.

    None where the parent cannot be read, or was cut in another way.
    """
    try:
        references = store.references(parent)
    except Damaged:
        return None
    if parent.chunk_bytes != CHUNK_BYTES:
        return None
    parents = (each.table for each in parent.processes)
    before = {place: ref.name for (place, _), ref in zip(_places(parents, parent.chunk_bytes), references, strict=True)}
    now = zip(_places(tables, parent.chunk_bytes), names, strict=True)
    return sum(size for (place, size), name in now if before.get(place) != name)


def _places(tables: Iterable[SealedTable], chunk_bytes: int) -> Iterator[tuple[Place, int]]:
    """Every chunk, in order, and its size."""
    for table in tables:
        for handle in table.handles:
            yield from (((table.pid, handle.spec.id, at), size) for at, size in cut(handle.spec.size, chunk_bytes))
