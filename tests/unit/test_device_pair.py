"""Memory that two devices may have in use after each case: bytes that a job leaves behind are a leak."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import device_pair

REST = {"GPU-0": 700 << 20, "GPU-1": 650 << 20}


def test_what_the_first_case_leaves_may_stay() -> None:
    noisy = {"GPU-0": REST["GPU-0"] + device_pair.MORE_BYTES, "GPU-1": 0}
    assert list(device_pair.growth({"in place": REST, "exchanged": noisy, "alone": REST})) == []


def test_more_on_either_device_is_named() -> None:
    leaked = {**REST, "GPU-1": REST["GPU-1"] + device_pair.MORE_BYTES + 1}
    (found,) = device_pair.growth({"in place": REST, "exchanged": leaked})
    assert found.startswith("exchanged") and "GPU-1" in found
