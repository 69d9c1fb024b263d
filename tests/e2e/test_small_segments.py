"""Segments so small that one message does not hold the descriptors of a copy or of a ring."""

import pytest
from machine import Machine

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_segments(machine: Machine) -> None:
    machine.memory = 1 << 30
    machine.extra |= {"GCR_SEGMENT_BYTES": str(2 * MIB), "GCR_SLOT_BYTES": str(160 * MIB)}


def test_a_copy_of_more_segments_than_one_message_holds_leaves_and_comes_back(machine: Machine) -> None:
    job = machine.told("llm", f"alloc 10 {54 * MIB}")
    before = job.ask()
    machine.leave()
    machine.come_back()
    assert job.ask() == before


def test_a_ring_of_more_segments_than_one_message_holds_brings_a_job_back(machine: Machine) -> None:
    job = machine.told("llm", f"alloc 3 {4 * MIB}")
    before, store = job.ask(), ("--store", str(machine.folder / "store"))
    gone = machine.gcr("checkpoint", "llm", *machine.where.options, "--image", "warm", *store, "--wait", "durable")
    assert gone.code == 0, gone.body
    came = machine.gcr("restore", "--image", "warm", *store)
    assert (came.code, came.body.get("streamed")) == (0, True), came.body
    assert job.ask() == before
