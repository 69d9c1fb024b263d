"""The drift of a soak: the excess of the last quarter over the second."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import soak

COUNT = 16
STEADY = {"bytes": 50 * soak.MIB, "descriptors": 20, "threads": 4}


def samples() -> list[dict[str, Any]]:
    return [
        {
            "processes": {name: dict(STEADY) for name in ("program", "daemon")},
            "program_device_bytes": 900,
            "device_used_bytes": 1000,
        }
        for _ in range(COUNT)
    ]


def swaps() -> list[dict[str, float]]:
    return [{"out_vram_free_s": 0.4, "out_stop_s": 0.3, "in_total_s": 0.2} for _ in range(4 * COUNT)]


def test_nothing_drifts() -> None:
    noisy, grown_at_first = swaps(), samples()
    noisy[-1]["out_stop_s"] = 9.0  # one of many
    for sample in grown_at_first[COUNT // 4 :]:
        sample["processes"]["daemon"]["bytes"] += 100 * soak.MIB
    grown_at_first[-1]["processes"]["program"]["bytes"] += soak.MORE_MEMORY
    grown_at_first[-1]["device_used_bytes"] += soak.MIB  # seen on an H200, of 128 KiB
    assert list(soak.drifts(grown_at_first, noisy)) == []


@pytest.mark.parametrize("what", ["bytes", "descriptors", "threads"])
def test_a_process_that_grows(what: str) -> None:
    drifting = samples()
    for number, sample in enumerate(drifting):
        sample["processes"]["daemon"][what] += number * (2 * soak.MIB if what == "bytes" else 1)
    (said,) = soak.drifts(drifting, swaps())
    assert said.startswith(f"{what} of the daemon grew from ")


@pytest.mark.parametrize("what", ["program_device_bytes", "device_used_bytes"])
def test_a_device_that_fills(what: str) -> None:
    drifting = samples()
    for number, sample in enumerate(drifting):
        sample[what] += number
    (said,) = soak.drifts(drifting, swaps())
    assert said.startswith(f"{what} grew from ")


def test_a_program_that_has_more_once() -> None:
    drifting = samples()
    drifting[-1]["program_device_bytes"] += 1
    (said,) = soak.drifts(drifting, swaps())
    assert said.startswith("program_device_bytes grew from ")


@pytest.mark.parametrize("what", ["out_vram_free_s", "out_stop_s", "in_total_s"])
def test_swaps_that_become_slow(what: str) -> None:
    drifting = swaps()
    for row in drifting[-COUNT:]:
        row[what] *= 1.2
    (said,) = soak.drifts(samples(), drifting)
    assert said.startswith(f"{what} grew from ")


def test_too_little_to_judge() -> None:
    assert list(soak.drifts(samples()[:3], swaps())) == ["only 3 samples"]
