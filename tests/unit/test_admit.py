"""Refusals before anything is touched that rest on the device's own answers."""

from types import SimpleNamespace

import pytest

from gcr.control import ControlPhase, ProcessView, Refusal
from gcr.engine.admit import refuse_as_inspected, refuse_uncounted
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


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [
        (Refusal("mig", "its device is in MIG mode"), "docs/limitations.md#mig"),
        (Refusal("fabric", "shares memory"), "docs/limitations.md#fabric"),
        (Refusal("count", "is of a newer gcr's"), ""),
        (Refusal("lease", "has a lease"), ""),
        (Refusal("lease", "has a lease", "acme-lease end"), "acme-lease end"),
    ],
)
def test_the_hint_of_a_backend_s_refusal_leads_somewhere(refusal, hint):
    with pytest.raises(UnsupportedState, match=f"process 7: {refusal.detail}") as told:
        refuse_as_inspected(ProcessView(7, ControlPhase.RUNNING, {}, (refusal,)), heard=True)
    assert told.value.hint == hint


def test_a_process_that_its_backend_does_not_refuse_is_taken():
    refuse_as_inspected(ProcessView(7, ControlPhase.RUNNING, {}, ()), heard=False)


SIGN = Refusal("nccl", "maps segments", "start it with gcr run", only_unheard=True)


def test_a_mere_sign_of_shared_memory_counts_where_no_agent_tells():
    with pytest.raises(UnsupportedState, match="process 7: maps segments") as told:
        refuse_as_inspected(ProcessView(7, ControlPhase.RUNNING, {}, (SIGN,)), heard=False)
    assert told.value.hint == "start it with gcr run"


def test_where_an_agent_tells_the_sign_is_none_and_hides_no_other_reason():
    refuse_as_inspected(ProcessView(7, ControlPhase.RUNNING, {}, (SIGN,)), heard=True)
    with pytest.raises(UnsupportedState, match="process 7: its device is in MIG mode"):
        refuse_as_inspected(
            ProcessView(7, ControlPhase.RUNNING, {}, (SIGN, Refusal("mig", "its device is in MIG mode"))), heard=True
        )
