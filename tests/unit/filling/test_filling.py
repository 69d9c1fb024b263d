"""Devices that are filled with a job's memory as its images come in: what a restore takes is the last image's bytes.

Reader, ring, worker's books and the fill are the real ones. A device in host memory stands for the target's.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from filled import Empty, Target, Worker
from host_device import ACTS, Act, act
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.api.migrations import Filled
from gcr.daemon.commands import filling
from gcr.errors import NoRoom
from gcr.hashing import CHUNK_BYTES
from gcr.migrationerrors import NoSuchMigration

Folders = Callable[[], Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return lambda: tmp_path_factory.mktemp("filled")


@settings(max_examples=30)
@given(rounds=st.lists(ACTS, min_size=1, max_size=4), fails=st.lists(st.integers(0, 40), min_size=4, max_size=4))
def test_a_restore_takes_the_last_images_bytes_or_nothing(
    folders: Folders, rounds: list[list[Act]], fails: list[int]
) -> None:
    """This holds for any acts of the program between two rounds, and a failure at any call of any round."""
    target = Target(folders() / "store")
    try:
        target.job.put(next(target.ids), random.Random(1).randbytes(3 * CHUNK_BYTES))
        for number, acts in enumerate(rounds):
            act(target.job, acts, target.ids)
            if not target.job.memory_of:
                target.job.put(next(target.ids), bytes(100))
            image = target.image()
            target.failing.left = fails[number]
            done = target.fill(image)
            target.failing.left = 0
            assert bool(done.refused) == target.nothing_is_left()
            assert "internal" not in done.refused
        found = target.restored(image)
        assert (found is None) == bool(done.refused)
        assert found is None or found == {id: target.job.holds(id) for id in target.job.memory_of}
    finally:
        target.close()


def test_each_round_copies_only_chunks_with_another_name(target: Target) -> None:
    size = len(target.job.holds(1))
    assert target.fill(target.image()) == Filled(bytes=size, fill_s=pytest.approx(0, abs=60))
    assert target.fill(target.image()).bytes == 0
    changed = bytearray(target.job.holds(1))
    changed[CHUNK_BYTES + 5] ^= 1
    target.job.put(1, bytes(changed))
    target.job.put(2, bytes(300))
    image = target.image()
    assert target.fill(image).bytes == CHUNK_BYTES + 300
    assert target.device.written == size + CHUNK_BYTES + 300
    assert target.restored(image) == {1: bytes(changed), 2: bytes(300)}


def test_memory_of_an_earlier_image_is_not_taken_for_a_later_one(target: Target) -> None:
    target.fill(target.image())
    assert target.restored(target.image()) is None


def test_a_chunk_that_is_damaged_never_comes_to_the_device(target: Target) -> None:
    (pack,) = [path for name in [target.image()] if name for path in target.store.packs.folder.glob("*.pack")]
    data = bytearray(pack.read_bytes())
    data[5000] ^= 1
    pack.write_bytes(bytes(data))
    assert "not what was written" in target.fill("round-1").refused
    assert target.nothing_is_left()


def test_room_that_is_left_to_drivers_is_not_taken(target: Target) -> None:
    target.device.free = 5 * CHUNK_BYTES
    assert "short" in target.fill(target.image()).refused
    assert target.nothing_is_left()


def test_a_program_that_needs_the_room_gets_it_and_no_later_round_takes_it_again(target: Target) -> None:
    target.fill(target.image())
    assert target.node.residents.arriving.may_be_on("GPU-2")
    target.node.residents.arriving.free({"GPU-9"})
    assert target.device.room
    target.node.residents.arriving.free({"GPU-2"})
    assert target.nothing_is_left()
    assert "needed the room" in target.fill(target.image()).refused


def test_what_a_restore_has_not_taken_goes_at_its_end(target: Target) -> None:
    image = target.image()
    target.fill(image)
    with (
        pytest.raises(NoRoom),
        target.node.residents.arriving.ended_by("llm", target.node.residents.arriving.known("llm")),
    ):
        raise NoRoom("full", missing=1)
    assert target.nothing_is_left()
    assert target.restored(image) is None


def test_what_a_restore_has_taken_is_no_longer_given_up_here(target: Target) -> None:
    image = target.image()
    target.fill(image)
    with target.node.residents.arriving.ended_by("llm", target.node.residents.arriving.known("llm")):
        assert target.restored(image) == {1: target.job.holds(1)}
    assert target.device.room


def test_a_migration_that_is_over_fills_nothing_and_leaves_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = target.image()
    target.fill(image)
    monkeypatch.setattr(filling, "is_arriving", lambda *_: False)
    with pytest.raises(NoSuchMigration):
        target.fill(image)
    assert target.nothing_is_left()


def test_a_worker_that_has_less_at_the_end_than_it_was_filled_with_is_said(target: Target) -> None:
    target.worker.loses = True
    assert "has not all" in target.fill(target.image()).refused
    assert target.nothing_is_left()


def test_a_worker_that_was_replaced_is_filled_from_the_first_byte(target: Target) -> None:
    image = target.image()
    target.fill(image)
    former, target.device = target.worker, Empty()
    target.worker = Worker(target.device, target.failing)
    assert target.fill(image).bytes == len(target.job.holds(1))
    assert target.restored(image) == {1: target.job.holds(1)}
    former.arena.close()
