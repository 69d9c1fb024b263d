"""Pure parts of the data plane that all vendors share."""

import gc
import weakref
from unittest.mock import Mock

import pytest

from gcr.drain import HandleSpec
from gcr.errors import DriverError
from gcr.vmm.drain import VmmDrain
from gcr.vmm.ranges import Piece, quietly, runs
from gcr.vmm.transfer import cut


def piece(offset: int, size: int) -> Piece:
    return Piece(HandleSpec(offset, size), None, offset)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        ([(0, 4)], [(0, 4)]),
        ([(0, 4), (4, 2), (6, 1)], [(0, 7)]),
        ([(6, 1), (0, 4)], [(0, 4), (6, 7)]),
        ([(0, 4), (8, 4), (4, 4), (16, 4)], [(0, 12), (16, 20)]),
    ],
)
def test_runs_join_neighbours_and_keep_holes(pieces: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    assert list(runs(piece(*each) for each in pieces)) == expected


@pytest.mark.parametrize("sizes", [[0], [1], [10], [11], [25, 3, 40]])
def test_cutting_a_copy_neither_loses_nor_repeats_a_byte(sizes: list[int]) -> None:
    copies = [(1000 * (n + 1), 5000 * (n + 1), size) for n, size in enumerate(sizes)]
    moved = [(to + i, at + i) for to, at, size in cut(copies, 10) for i in range(size)]
    assert moved == [(to + i, at + i) for to, at, size in copies for i in range(size)]
    assert all(size <= 10 for _to, _at, size in cut(copies, 10))


def test_a_failing_undo_hides_nothing_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise DriverError("cuMemRelease: CUDA_ERROR_UNKNOWN (999)")

    quietly("cuMemRelease", fail)
    assert "CUDA_ERROR_UNKNOWN" in caplog.text


def test_ballast_that_was_released_is_forgotten_and_other_is_released_at_the_end() -> None:
    """A worker makes some at every checkpoint, for years."""
    driver = Mock(granularity=2 << 20)
    driver.create.side_effect = ["first", "second"]
    drain = VmmDrain(driver)
    first, _second = drain.ballast(1), drain.ballast(3 << 20)
    gone = weakref.ref(first)
    first.release()
    del first
    gc.collect()
    assert gone() is None
    drain.close()
    assert [call.args[0] for call in driver.release.call_args_list] == ["first", "second"]
