"""Amounts of memory in text."""

import pytest

from gcr import units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (34_898_706_432, "32.5 GiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_a_size_has_the_unit_that_suits_it(count: int, text: str) -> None:
    assert units.size(count) == text
