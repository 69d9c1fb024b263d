"""Refusals before anything is touched that rest on the device's own answers."""

from types import SimpleNamespace

import pytest

from gcr.engine.admit import refuse_uncounted
from gcr.errors import UnsupportedState

DEVICE = "GPU-1"


def target(counts, covered):
    status = SimpleNamespace(devices=[SimpleNamespace(covered_bytes=covered)])
    return SimpleNamespace(pid=7, books=SimpleNamespace(counts=counts), look=lambda: status)


@pytest.mark.parametrize("counts", [{}, {DEVICE: 0}])
def test_a_device_that_does_not_count_by_process_cannot_say_that_it_is_free(counts):
    with pytest.raises(UnsupportedState, match="process 7"):
        refuse_uncounted(target(counts, covered=1 << 20))


@pytest.mark.parametrize(("counts", "covered"), [({DEVICE: 16 << 20}, 1 << 20), ({}, 0), ({DEVICE: 16 << 20}, 0)])
def test_one_that_does_or_need_not_is_taken(counts, covered):
    refuse_uncounted(target(counts, covered))
