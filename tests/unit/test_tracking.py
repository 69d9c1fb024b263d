import pytest

from gcr.drain import HandleSpec
from gcr.job.tracking import AllocationTracker, Contradiction, ReportedAllocations
from gcr.protocol.agentwire import (
    DeviceRecord,
    ExportBatch,
    HandleRecord,
    IdList,
    MappingBatch,
    StatusRecord,
    StatusReply,
    UncoveredRecord,
)
from gcr.protocol.wire import MappingRecord, Reason, Refuse

MiB = 1 << 20
UUIDS = [bytes([number]) * 16 for number in range(3)]


def status(devices=(0,), uncovered=(), generation=1) -> StatusReply:
    records = tuple(DeviceRecord(UUIDS[ordinal], ordinal, 0, 0) for ordinal in devices)
    return StatusReply(StatusRecord(generation=generation), records, tuple(uncovered))


def handles(*records: HandleRecord) -> ExportBatch:
    return ExportBatch.of(1, records, more=False)


def mappings(*records: MappingRecord) -> MappingBatch:
    return MappingBatch.of(1, 0, records, more=False)


def mapped(id: int, address: int, size: int = 2 * MiB, offset: int = 0) -> MappingRecord:
    return MappingRecord(id, address, offset, size, read_devices=1, write_devices=1)


@pytest.fixture
def tracker() -> AllocationTracker:
    found = ReportedAllocations(name_device=lambda raw: f"GPU-{raw[0]}")
    found.apply(status(devices=(0, 1)))
    return found


def test_the_table_is_what_was_reported(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB, 0, mappings=2, compression=1, usage=3), HandleRecord(2, 4 * MiB, 1)))
    tracker.apply(mappings(mapped(1, 0x7000), mapped(1, 0x5000, MiB, MiB)))
    table = tracker.table()
    assert table.bytes == 6 * MiB
    assert table.ordinals == {0: "GPU-0", 1: "GPU-1"}
    assert table.allocations[1].spec == HandleSpec(1, 2 * MiB, 1, 1, 0, 3)
    assert table.allocations[1].mappings == (mapped(1, 0x5000, MiB, MiB), mapped(1, 0x7000))
    assert [each.spec.id for each in table.of_device("GPU-1")] == [2]


def test_a_table_does_not_change_when_more_is_reported(tracker):
    before = tracker.table()
    tracker.apply(handles(HandleRecord(1, 2 * MiB)))
    assert before.allocations == {}
    with pytest.raises(TypeError):
        before.allocations[1] = None


def test_what_is_freed_is_gone_with_its_mappings(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB, mappings=1), HandleRecord(2, 2 * MiB)))
    tracker.apply(mappings(mapped(1, 0x7000)))
    tracker.apply(IdList(1, (1,)))
    assert set(tracker.table().allocations) == {2}


def test_an_id_that_comes_back_is_an_error_and_changes_nothing(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB)))
    tracker.apply(IdList(1, (1,)))
    with pytest.raises(Contradiction, match="released and is back"):
        tracker.apply(handles(HandleRecord(3, 2 * MiB), HandleRecord(1, 2 * MiB)))
    assert tracker.table().allocations == {}


@pytest.mark.parametrize(
    "other", [HandleRecord(1, 4 * MiB), HandleRecord(1, 2 * MiB, device=1), HandleRecord(1, 2 * MiB, compression=1)]
)
def test_a_live_id_that_means_something_else_is_an_error(tracker, other):
    tracker.apply(handles(HandleRecord(1, 2 * MiB)))
    with pytest.raises(Contradiction, match="another one"):
        tracker.apply(handles(other))


def test_the_same_handle_may_be_reported_again_with_more_mappings(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB)))
    tracker.apply(handles(HandleRecord(1, 2 * MiB, mappings=1)))
    tracker.apply(mappings(mapped(1, 0x7000)))
    assert len(tracker.table().allocations[1].mappings) == 1


def test_an_id_twice_in_one_batch_is_an_error(tracker):
    with pytest.raises(Contradiction, match="twice"):
        tracker.apply(handles(HandleRecord(1, 2 * MiB), HandleRecord(1, 2 * MiB)))


def test_a_handle_of_no_bytes_is_an_error(tracker):
    with pytest.raises(Contradiction, match="no bytes"):
        tracker.apply(handles(HandleRecord(1, 0)))


@pytest.mark.parametrize(
    "bad", [mapped(9, 0x1000), mapped(1, 0x1000, 3 * MiB), mapped(1, 0x1000, 2 * MiB, MiB), mapped(1, 0, 0)]
)
def test_a_mapping_outside_every_handle_is_an_error(tracker, bad):
    tracker.apply(handles(HandleRecord(1, 2 * MiB)))
    with pytest.raises(Contradiction, match="mapping"):
        tracker.apply(mappings(bad))


def test_a_mapping_of_a_handle_freed_meanwhile_is_passed_over(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB)))
    tracker.apply(IdList(1, (1,)))
    tracker.apply(mappings(mapped(1, 0x7000)))
    assert tracker.table().allocations == {}


def test_a_program_may_map_a_handle_again_after_it_was_listed(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB, mappings=1)))
    tracker.apply(mappings(mapped(1, 0x7000), mapped(1, 0x9000)))
    assert len(tracker.table().allocations[1].mappings) == 2
    assert [place.address for place in tracker.table().mappings()] == [0x7000, 0x9000]


def test_a_handle_on_a_device_without_uuid_is_an_error(tracker):
    with pytest.raises(Contradiction, match="device 7"):
        tracker.apply(handles(HandleRecord(1, 2 * MiB), HandleRecord(2, 2 * MiB, device=7)))
    assert tracker.table().allocations == {}


def test_bytes_by_device_follow_what_is_reported_and_freed(tracker):
    tracker.apply(handles(HandleRecord(1, 2 * MiB), HandleRecord(2, 4 * MiB, 1), HandleRecord(3, 6 * MiB, 1)))
    tracker.apply(handles(HandleRecord(2, 4 * MiB, 1, mappings=1)))  # again: counted once
    tracker.apply(IdList(1, (3, 99)))
    tracker.apply(IdList(1, (3,)))
    assert tracker.bytes_by_device() == {"GPU-0": 2 * MiB, "GPU-1": 4 * MiB}
    assert tracker.ordinals() == {0: "GPU-0", 1: "GPU-1"}


def test_an_ordinal_keeps_its_device(tracker):
    moved = StatusReply(StatusRecord(), (DeviceRecord(UUIDS[2], 0, 0, 0),))
    with pytest.raises(Contradiction, match="device 0"):
        tracker.apply(moved)
    assert tracker.table().ordinals[0] == "GPU-0"


def test_uncovered_bytes_and_refusals_are_the_shim_s_last_word(tracker):
    assert (tracker.uncovered(), list(tracker.refusals())) == ({}, [])
    pool, nccl = UncoveredRecord(Reason.POOL, 0, 10, 1), UncoveredRecord(Reason.MULTICAST, 1, 20, 1)
    tracker.apply(status(uncovered=(pool, nccl)))
    assert tracker.uncovered() == {Reason.POOL: 10, Reason.MULTICAST: 20}
    assert list(tracker.refusals()) == [Reason.MULTICAST]
    tracker.apply(status())
    assert tracker.uncovered() == {}


def test_a_reason_only_a_newer_shim_knows_still_refuses_and_still_counts(tracker):
    tracker.apply(status(uncovered=(UncoveredRecord(77, 1, 5, 1), UncoveredRecord(78, 0, 6, 1))))
    assert len(list(tracker.refusals())) == 1
    assert sum(tracker.uncovered().values()) == 11


def test_what_counts_against_whole_processes_alone_is_apart_and_an_unknown_verdict_counts_against_all(tracker):
    event, later = UncoveredRecord(Reason.IPC_EVENT, Refuse.WHOLE, 0, 2), UncoveredRecord(Reason.POOL, 3, 0, 1)
    tracker.apply(status(uncovered=(event, later)))
    assert list(tracker.refusals_of_whole()) == [Reason.IPC_EVENT]
    assert list(tracker.refusals()) == [Reason.POOL]


def test_the_generation_is_the_shim_s(tracker):
    tracker.apply(status(generation=5))
    assert tracker.table().generation == 5


def test_a_uuid_is_written_the_usual_way_by_default():
    tracker = ReportedAllocations()
    tracker.apply(status())
    assert tracker.table().ordinals == {0: "00000000-0000-0000-0000-000000000000"}
