"""The staged copies of a job's processes, lent to an image helper and held still until the image is written."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from gcr.errors import UsageError
from gcr.image.chunks.lines import StagedLine, merged
from gcr.image.chunks.records import Records, Run
from gcr.image.write.inherited import Inherited
from gcr.image.write.parent import AllocationKey, ChunkNames, Parent
from gcr.image.write.part import Addition
from gcr.image.write.writer import ImageWriter
from gcr.imageerrors import BROKEN, HashMissed
from gcr.memory.bundles import bundled
from gcr.memory.layout import SealedHandle, SealedTable
from gcr.memory.partial import PartialTable, Where
from gcr.protocol.seqpacket import close_all


class Lent(Struct):
    """Staged copies. `_lines`: those of each process by its pid, in the order in which the processes were lent."""

    _lines: dict[int, list[StagedLine]] = field(default_factory=dict)
    _over: list[StagedLine] = field(default_factory=list)

    def take(self, pid: int, fds: Sequence[int], partial: bool) -> None:
        """Takes the descriptors of one process: for each device its table, then its segments.

        partial: the tables are of a copy for an image alone. Raises NotASegment, DamagedTable, OSError; RolledBack
        where segments are missing.
        """
        bundles = bundled(fds, PartialTable.from_fd if partial else _whole)
        lines = self._lines.setdefault(pid, [])
        try:
            for each in bundles:
                lines.append(StagedLine(each.table, each.segments))
        finally:
            close_all(fds)

    def tables(self) -> Sequence[SealedTable]:
        """Returns a table for each process, in the image's order."""
        return [merged([line.table for line in lines]) for lines in self._lines.values()]

    def total_bytes(self) -> int:
        return sum(handle.spec.size for _, _, handle in self._handles())

    def additions(self, parent: Parent | None) -> Iterator[Addition]:
        """Yields the allocations for the writer; chunks that are not in the segments go by the parent's names.

        Raises UsageError for such a chunk without a parent.
        """
        for pid, line, handle in self._handles():
            where = line.chunks[handle.spec.id]
            yield line.allocation(handle), _inherited(parent, (pid, handle), where, Where.PARENT)

    def written(self, writer: ImageWriter, parent: Parent | None) -> ChunkNames:
        """Returns the size of each allocation, and records with its chunks' names.

        Raises HashMissed if a chunk differs from the parent's although their hashes are equal.
        """
        found: dict[AllocationKey, tuple[int, Records]] = {}
        first = 0
        for pid, line, handle in self._handles():
            where = line.chunks[handle.spec.id]
            names = writer.records(first, len(where))
            same = _inherited(parent, (pid, handle), where, Where.BOTH)
            if missed := [other for run in same for other in _others(names, run)]:
                count, number = sum(end - begin for begin, end in missed), missed[0][0]
                text = f"{count} chunks of process {pid}, such as {number} of allocation {handle.spec.id}"
                raise HashMissed(f"{text}, differ from the parent's, and their hashes are the same", hint=BROKEN)
            found[pid, handle.spec.id] = handle.spec.size, names
            first += len(where)
        return found

    def _handles(self) -> Iterator[tuple[int, StagedLine, SealedHandle]]:
        """Yields pid, line and handle in the image's order."""
        for pid, lines in self._lines.items():
            for line in lines:
                yield from ((pid, line, handle) for handle in line.table.handles)

    def close(self) -> None:
        """Releases all holds; the owners of the segments may overwrite them."""
        while self._lines:
            lines = self._lines.popitem()[1]
            self._over += lines
            for line in lines:
                line.let_go()

    def unmap(self) -> None:
        """Unmaps what was closed. It takes a second for 30 GB, and comes last so that no answer waits for it."""
        while self._over:
            self._over.pop().close()


def _whole(fd: int) -> PartialTable:
    return PartialTable.whole(SealedTable.from_fd(fd))


def _inherited(
    parent: Parent | None, whose: tuple[int, SealedHandle], where: bytes, those: Where
) -> Sequence[Inherited]:
    """Returns the chunks of an allocation that are `those`, as runs of the parent's.

    Raises UsageError if there are some and no parent has them.
    """
    runs = [match.span() for match in re.finditer(re.escape(bytes([those])) + b"+", where)]
    if not runs:
        return ()
    pid, handle = whose
    known = parent.allocations.get((pid, handle.spec.id)) if parent else None
    if known is None or known.size != handle.spec.size:
        raise UsageError(f"a copy of process {pid} lacks chunks that no parent has")
    return [Inherited(known, first, end) for first, end in runs]


def _others(names: Records, run: Inherited) -> Iterator[Run]:
    """Yields the chunks that have other names than the parent's."""
    return names.other_names(run.first, run.end, run.of.references, run.first)
