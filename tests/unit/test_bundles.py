"""What was staged of a process is cut into tables and their segments; after an error no descriptor stays open."""

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from channels import open_descriptors
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.drain import HandleSpec
from gcr.engine.copyout import StagedCopy
from gcr.errors import RolledBack, UsageError
from gcr.image_helper.lent import Lent
from gcr.memory.addresses import HUGE_PAGE
from gcr.memory.bundles import bundled
from gcr.memory.layout import DamagedTable, SealedHandle, SealedSegment, SealedTable
from gcr.memory.memfiles import filled_memfd
from gcr.memory.partial import PartialTable
from gcr.protocol.batches import Incoming
from gcr.protocol.operations import worker as ops
from gcr.worker.serving.copies import CopyServing

GPU, OTHER = "GPU-a", "GPU-b"


def table(device: str, segments: int) -> SealedTable:
    handle = SealedHandle(HandleSpec(1, HUGE_PAGE), device, 0)
    return SealedTable("llm", 7, 8, 9, {}, (handle,), (), (SealedSegment(device, HUGE_PAGE),) * segments)


def staged(device: str, segments: int, named: int | None = None) -> list[int]:
    """Returns descriptors of a table and of segments; the table names `named` segments."""
    made = table(device, segments if named is None else named)
    return [made.to_memfd(), *(filled_memfd(HUGE_PAGE) for _ in range(segments))]


def damaged() -> int:
    fd = os.memfd_create("damaged")
    whole = bytearray(table(GPU, 1).to_bytes())
    whole[-1] ^= 1
    os.write(fd, whole)
    return fd


class Copy:
    """A worker's copy. `error`: raised at the takeover; the segments are closed then as well."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.came = error, cast("list[tuple[SealedTable, list[int]]]", [])

    def reclaim(self, table: SealedTable, fds: Sequence[int]) -> None:
        self.came.append((table, [os.fstat(fd).st_ino for fd in fds]))
        for fd in fds:
            os.close(fd)
        if self.error:
            raise self.error


def given_to_a_worker(fds: list[int], copy: Copy | None = None, device: str = GPU) -> None:
    holdings = SimpleNamespace(copy=lambda _copy, _owner: copy or Copy())
    serving = CopyServing(cast("Any", holdings), cast("Any", None), Incoming(), cast("Any", None))
    asked = ops.Reclaim(ops.CopyName("7.1", 9), "llm/7", device, 0, len(fds))
    serving.operations()[ops.Reclaim](asked, fds, cast("Any", None))


def lent(fds: list[int]) -> None:
    known = Lent()
    try:
        known.take(7, fds, partial=False)
    finally:
        known.close()
        known.unmap()


TAKERS = [lambda fds: bundled(fds, SealedTable.from_fd), StagedCopy.of, lent, given_to_a_worker]
NAMES = ["parser", "engine", "image helper", "worker"]

BROKEN: list[tuple[Callable[[], list[int]], type[Exception], str]] = [
    (lambda: staged(GPU, 2, named=3), RolledBack, "3 descriptors were staged, the tables name 4"),
    (lambda: staged(GPU, 0, named=1), RolledBack, "1 descriptors were staged, the tables name 2"),
    (lambda: [*staged(OTHER, 1), *staged(GPU, 1, named=2)], RolledBack, "the tables name 5"),
    (lambda: staged(GPU, 2, named=1), DamagedTable, "is damaged"),
    (lambda: [*staged(OTHER, 1), damaged(), filled_memfd(HUGE_PAGE)], DamagedTable, "is damaged"),
    (lambda: [damaged(), *staged(GPU, 1)], DamagedTable, "is damaged"),
]
WHAT = ["one is missing", "all are missing", "one of the second device", "surplus", "second damaged", "first damaged"]


@pytest.mark.parametrize(("made", "error", "text"), BROKEN, ids=WHAT)
@pytest.mark.parametrize("take", TAKERS, ids=NAMES)
def test_descriptors_that_do_not_fit_the_tables_are_refused_and_closed(
    take: Callable[[list[int]], object], made: Callable[[], list[int]], error: type[Exception], text: str
) -> None:
    before = open_descriptors()
    with pytest.raises(error, match=text):
        take(made())
    assert open_descriptors() == before


def test_each_device_has_its_own_segments() -> None:
    before, fds = open_descriptors(), [*staged(GPU, 2), *staged(OTHER, 1)]
    one, two = bundled(fds, SealedTable.from_fd)
    assert (one.table, two.table) == (table(GPU, 2), table(OTHER, 1))
    assert ([*one.fds], [*one.segments], [*two.segments]) == (fds[:3], fds[1:3], fds[4:])
    one.close()
    assert open_descriptors() == before + 2
    two.close()
    assert open_descriptors() == before


def test_a_worker_takes_the_segments_of_its_device_and_closes_the_rest() -> None:
    before, copy, fds = open_descriptors(), Copy(), [*staged(GPU, 2), *staged(OTHER, 3)]
    wanted = [os.fstat(fd).st_ino for fd in fds[4:]]
    given_to_a_worker(fds, copy, OTHER)
    assert copy.came == [(table(OTHER, 3), wanted)]
    assert open_descriptors() == before


@pytest.mark.parametrize("devices", [[], [OTHER], [GPU, OTHER, GPU]])
def test_a_worker_takes_nothing_unless_one_table_is_of_its_device(devices: list[str]) -> None:
    before, fds = open_descriptors(), [fd for device in devices for fd in staged(device, 1)]
    with pytest.raises(UsageError, match=f"{devices.count(GPU)} tables of device {GPU} were staged"):
        given_to_a_worker(fds)
    assert open_descriptors() == before


def test_a_worker_that_cannot_take_over_closes_the_segments() -> None:
    before = open_descriptors()
    with pytest.raises(RolledBack, match="given up"):
        given_to_a_worker(staged(GPU, 2), Copy(RolledBack("it was given up meanwhile")))
    assert open_descriptors() == before


@pytest.mark.parametrize("read", [SealedTable.from_fd, PartialTable.from_fd])
def test_a_segment_in_the_place_of_a_table_is_not_read_as_a_whole(read: Callable[[int], Any]) -> None:
    before, fds = open_descriptors(), [os.memfd_create("huge")]
    os.ftruncate(fds[0], 1 << 50)
    with pytest.raises(DamagedTable):
        bundled(fds, read)
    assert open_descriptors() == before


def test_tables_of_a_copy_for_an_image_are_read_as_such() -> None:
    before, known = open_descriptors(), Lent()
    whole = PartialTable.whole(table(GPU, 1))
    known.take(7, [whole.to_memfd(), filled_memfd(HUGE_PAGE)], partial=True)
    assert known.tables() == [whole.table]
    with pytest.raises(DamagedTable):
        known.take(8, staged(GPU, 1), partial=True)
    known.close()
    known.unmap()
    assert open_descriptors() == before


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), max_size=6), st.data())
def test_any_grouping_comes_apart_as_it_was_put_together(sizes: list[int], data: st.DataObject) -> None:
    before = open_descriptors()
    groups = [[table(f"GPU-{n}", size).to_memfd(), *(os.dup(0) for _ in range(size))] for n, size in enumerate(sizes)]
    fds = [fd for group in groups for fd in group]
    found = bundled([*fds], SealedTable.from_fd)
    assert [[*each.fds] for each in found] == groups
    assert [each.table for each in found] == [table(f"GPU-{n}", size) for n, size in enumerate(sizes)]
    inside = [at for group in groups for at in map(fds.index, group[1:])]
    if inside:  # cut anywhere but behind a whole group, it is refused
        at = data.draw(st.sampled_from(inside))
        rest, fds = fds[at:], fds[:at]
        for fd in rest:
            os.close(fd)
        with pytest.raises(RolledBack):
            bundled(fds, SealedTable.from_fd)
    else:
        for each in found:
            each.close()
    assert open_descriptors() == before
