"""The size of two programs of a benchmark, by the host's memory."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import swap
import testbed
from testbed import GIB

SERVED = ("serve-room", "serve-there", "serve-warm", "serve-others")


@pytest.mark.parametrize(
    ("available", "wanted", "found"), [(256, 32, 32), (128, 32, 16), (128, 8, 8), (128, 16, 16), (16, 32, 16)]
)
def test_two_programs_have_room_in_the_arena(
    available: int, wanted: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed, "available_host_bytes", lambda: available * GIB)
    assert testbed.gib_of_two(wanted) == found


def test_a_larger_share_has_room_for_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "available_host_bytes", lambda: 128 * GIB)
    monkeypatch.setenv("GCR_ARENA_SHARE", "0.6")
    assert testbed.gib_of_two(32) == 32


@pytest.mark.parametrize("piece", SERVED)
def test_served_models_are_of_that_size(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "gib_of_two", lambda wanted: wanted / 2)
    sizes: list[float] = []
    monkeypatch.setattr(swap.serve_swaps, "of_gcr", lambda gib, _parked: sizes.append(gib))
    monkeypatch.setattr(swap.serve_swaps, "of_others", sizes.append)
    swap.pieces(32)[piece]()
    assert sizes == [16]
