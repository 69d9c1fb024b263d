"""What a disk takes: bounded in bytes and time, by of bytes that no store had, in ways that differ."""

from pathlib import Path
from typing import Any

import pytest

from gcr.checkpoints import measuring, share
from gcr.errors import NoRoom
from gcr.image.write.part import PartWriter

MIB = 1 << 20


def test_every_trial_writes_all_of_its_bytes_by_its_threads_and_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the test is so fast that a trial has as many bytes as a save."""
    made: list[PartWriter] = []

    def writer(*given: Any, **named: Any) -> PartWriter:
        made.append(PartWriter(*given, **named))
        return made[-1]

    monkeypatch.setattr(share, "PartWriter", writer)
    monkeypatch.setattr(measuring, "LONGEST_S", 300.0)  # on a busy machine too
    found = measuring.measured(tmp_path / "run", 8 * MIB)
    trials = made[::2]  # each is followed by the writer of its record
    assert {each.counts.written for each in trials} == {8 * MIB}, "no chunk is there before, or is zero"
    ways = {(each.threads, each.chunk_bytes) for each in trials}
    assert ways == {(each.threads, each.chunk_bytes) for each in found}
    assert len(ways) == len(measuring.THREADS) * len(measuring.CHUNKS)
    assert sum(len(each.bytes_per_s) for each in found) == len(trials) - 1, "the first wakes the disk"
    assert max(len(each.bytes_per_s) for each in found) == len(measuring.ROUNDS)
    assert not [*tmp_path.iterdir()]


def test_a_slow_disk_ends_it_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "LONGEST_S", 0.0)
    assert [len(each.bytes_per_s) for each in measuring.measured(tmp_path, MIB)] == [1]


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "free_bytes", lambda _: 7 * MIB)
    with pytest.raises(NoRoom) as refused:
        measuring.measured(tmp_path, 2 * MIB)
    assert refused.value.missing == MIB
    assert not [*tmp_path.iterdir()]
