"""Compressed steps of a run: where the store is slow they are saved faster, and mixed with others they are as good."""

import os
import random
import struct
import sys
import time
from pathlib import Path
from threading import Lock

import pytest
from msgspec.structs import replace

from gcr.checkpoints.anatomy import anatomy_of
from gcr.checkpoints.compression import LEAST, Compression, gain
from gcr.checkpoints.helper import SaveHelper
from gcr.checkpoints.loading import Step
from gcr.checkpoints.run import Run, run_in
from gcr.checkpoints.saving import Framework, Saving, write_share
from gcr.checkpoints.share import File, write_files
from gcr.errors import LibraryMissing, UsageError
from gcr.image.files.manifest import Manifest
from gcr.image.pack import writer as packing_of
from gcr.image.pack.pace import Pace, Packing
from gcr.imageerrors import Damaged

MB = 1_000_000
SLOW = 8 * MB  # bytes a second
MOST_SAVES = 6  # until one is compressed
WRITE = packing_of._File.write


def weights(seed: int, nbytes: int) -> bytearray:
    """Returns numbers of 16 bits (bfloat16), with exponents as those of a model, and mantissas of noise."""
    draw = random.Random(seed)
    exponents = struct.pack("<4096f", *(draw.gauss(0, 0.02) for _ in range(4096)))[3::4]
    found = bytearray(nbytes)
    found[0::2] = draw.randbytes(len(found[0::2]))
    found[1::2] = bytes(draw.choices(exponents, k=len(found[1::2])))
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_in(tmp_path / "store", "train")


class SlowDisk:
    """A disk that writes one block after the other, at the rate SLOW. `busy`: seconds so far."""

    def __init__(self) -> None:
        self.busy, self.lock = 0.0, Lock()

    def write(self, file: packing_of._File, at: int, blocks: memoryview) -> None:
        with self.lock:
            time.sleep(len(blocks) / SLOW)
            self.busy += len(blocks) / SLOW
            WRITE(file, at, blocks)


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(packing_of._File, "write", lambda *how: disk.write(*how))
    return disk


def save(run: Run, step: int, data: bytearray, packing: Packing = "plain") -> tuple[Manifest, Pace]:
    saving = Saving(run, step)
    share = write_files(run.store(), run.image(step), [("0.0", memoryview(data))], packing=packing)
    assert share.part.pace
    return saving.commit([share], b"what it is", 1, Framework("torch", {"torch": "2.13"})), share.part.pace


def read(run: Run, step: int) -> bytes:
    with Step(run, step) as found:
        return bytes(found.read("0.0", 0, found.size("0.0")))


# ---- the decision ---------------------------------------------------------------------------------------------------


def seen(store: float, codec: float, ratio: float, nbytes: int = LEAST) -> Pace:
    return Pace(nbytes, nbytes / store, 1 << 20, int(ratio * (1 << 20)), (1 << 20) / codec, False, 1e-6)


def learn(found: Compression, pace: Pace | None, sent_s: float = 0.0) -> None:
    """Of a save that was the faster for being compressed."""
    is_on = found.packing() == "compressed"
    found.learn(pace and replace(pace, compressed=is_on), 2 if is_on else 1, sent_s)


@pytest.mark.parametrize(
    ("store", "codec", "ratio", "is_on"),
    [
        *((100 * MB, 400 * MB, 0.84, True), (100 * MB, 400 * MB, 0.95, False), (2000 * MB, 400 * MB, 0.5, False)),
        *((250 * MB, 400 * MB, 0.5, False), (240 * MB, 400 * MB, 0.5, True)),
    ],
)
def test_auto_is_on_where_a_save_becomes_a_tenth_faster(store: float, codec: float, ratio: float, is_on: bool) -> None:
    found = Compression("auto")
    assert (found.packing(), found.why) == ("sampled", "off: no save has measured the store yet")
    learn(found, seen(store, codec, ratio))
    assert found.packing() == ("compressed" if is_on else "sampled")
    assert found.why.startswith("on: " if is_on else "off: ")
    assert f"{store / MB:,.0f} MB/s" in found.why
    assert f"{codec / MB:,.0f} MB/s" in found.why
    assert f"{100 * ratio:.0f} %" in found.why


def test_it_goes_with_the_store_but_not_with_one_odd_save() -> None:
    found = Compression("auto")
    for store, is_on in [(2000, False), (2000, False), (50, False), (50, True), (2000, True), (2000, False)]:
        learn(found, seen(store * MB, 400 * MB, 0.8))
        assert (found.packing() == "compressed") == is_on, store


def test_it_ends_where_compressed_saves_are_no_faster_and_begins_again_where_others_get_slow() -> None:
    """Other work may take the processor, which no rate of the codec tells."""
    found, pace = Compression("auto"), seen(100 * MB, 400 * MB, 0.8)
    for took_s, is_on in [(1.0, True), (0.98, False), (1.0, False), (3.0, False), (3.0, True)]:
        found.learn(replace(pace, compressed=found.packing() == "compressed", took_s=took_s), 100 * MB)
        assert (found.packing() == "compressed") == is_on, took_s
        if not is_on:
            assert found.why.startswith("off: compressed, saves were no faster: 102 MB/s, and ")


def test_a_save_of_little_and_one_that_had_no_sample_tell_nothing() -> None:
    found = Compression("auto")
    learn(found, None)
    learn(found, seen(1 * MB, 400 * MB, 0.8, LEAST - 1))
    learn(found, Pace(LEAST, 10.0, 0, 0, 0.0, False, 10.0))
    assert found.packing() == "sampled"


def test_the_time_in_which_a_save_was_sent_counts() -> None:
    found = Compression("auto")
    learn(found, seen(2000 * MB, 400 * MB, 0.8), sent_s=1.0)
    assert found.packing() == "compressed"


def test_a_sample_is_no_small_tensor(run: Run) -> None:
    """Those do not compress, and are few of the bytes."""
    small = [(f"0.{number}", memoryview(bytearray(random.Random(number).randbytes(600)))) for number in range(9)]
    files = [("big", memoryview(weights(1, 256 << 10))), *small]
    share = write_files(run.store(), run.image(1), files, packing="sampled")
    assert share.part.pace
    assert share.part.pace.plain_bytes == 256 << 10


def test_it_is_off_or_on_where_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, packing in (("off", "plain"), ("on", "compressed")):
        found = Compression(asked)  # type: ignore[arg-type]
        learn(found, seen(2000 * MB, 400 * MB, 1.0))
        assert (found.packing(), found.why) == (packing, f"{asked}: asked for")
    with pytest.raises(UsageError, match="compress='zip': off, auto, on"):
        Compression("zip")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    Compression("off")
    for asked in ("on", "auto"):
        with pytest.raises(LibraryMissing, match="zstandard"):
            Compression(asked)  # type: ignore[arg-type]


def test_a_save_is_as_slow_as_the_slower_of_codec_and_store() -> None:
    assert gain(100, 1000, 0.5) == 2
    assert gain(100, 180, 0.5) == 1.2


# ---- saves ----------------------------------------------------------------------------------------------------------


def test_on_a_slow_store_a_save_is_faster_from_the_second_on(run: Run, slow_store: SlowDisk) -> None:
    """By the time of the disk and that of the processor, as if none of it were side by side: other work counts in no
    time of the clock. It does in the codec's rate; where that comes out too low, the next save is as the first.
    """
    found, times = Compression("auto"), dict[Packing, float]()
    for step in range(1, MOST_SAVES + 1):
        packing, data = found.packing(), weights(step, 10 << 20)
        disk, processor = slow_store.busy, time.process_time()
        manifest, pace = save(run, step, data, packing)
        wrote_s = slow_store.busy - disk
        times[packing] = wrote_s + time.process_time() - processor
        assert 0.5 * SLOW < pace.disk_bytes / pace.disk_s < 1.05 * SLOW
        assert pace.took_s > 0.95 * wrote_s
        found.learn(replace(pace, took_s=times[packing]), manifest.costs.bytes_written)
        assert read(run, step) == data
        if packing == "compressed":
            break
    assert found.packing() == "compressed", found.why
    assert times["compressed"] < 0.85 * times["sampled"], (times, found.why)
    assert 0.6 < (manifest.costs.bytes_stored or 0) / manifest.costs.bytes_written < 0.72


def test_on_a_fast_disk_nothing_is_compressed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the tests may be a slow one: this one takes no time."""
    monkeypatch.setattr(packing_of._File, "write", lambda _self, _at, _blocks: None)
    monkeypatch.setattr(packing_of._File, "sync", lambda _self: None)
    found = Compression("auto")
    for step in (1, 2, 3):
        files: list[File] = [("0.0", memoryview(weights(step, 10 << 20)))]
        share = write_files(run.store(), run.image(step), files, packing=found.packing())
        found.learn(share.part.pace, share.part.counts.written)
        assert share.part.pace
        assert share.part.pace.plain_bytes <= 1 << 20, "samples are few"
        assert share.part.counts.stored == share.part.counts.written
        assert (found.packing(), found.why[:11]) == ("sampled", "off: the st")


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_steps_of_both_kinds_share_chunks_and_stay_when_others_go(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    if is_encrypted:
        (tmp_path / "key").write_text(os.urandom(32).hex())
        (tmp_path / "key").chmod(0o600)
        monkeypatch.setenv("GCR_KEY_FILE", str(tmp_path / "key"))
    base, states = weights(1, 1 << 20), {}
    for step in range(1, 7):
        base[step * 100_000 : step * 100_000 + 1000] = random.Random(step).randbytes(1000)
        states[step] = bytearray(base)
        manifest, _ = save(run, step, states[step], "compressed" if step % 2 else "plain")
        assert run.manifest(step) == manifest
        assert (manifest.costs.bytes_stored is not None) == bool(step % 2)
        assert manifest.costs.bytes_written <= (1 << 20 if step == 1 else 2 * (256 << 10)) + 10
    for gone in ([], [1, 4], [2, 3, 5]):
        run.remove(gone)
        for step in run.steps():
            assert read(run, step) == states[step]
            assert run.verify(step) > 0
    assert run.steps() == [6]
    shown = anatomy_of(run.store(), "train")
    assert shown
    assert shown.steps[0].bytes_stored == shown.steps[0].bytes_written
    run.remove([6])
    assert not [*(run.folder / "packs").iterdir()]


def test_sparse_compressed_packs_go_as_others_do(run: Run) -> None:
    data = weights(1, 8 * (256 << 10))
    save(run, 1, data, "compressed")
    moved = bytearray(weights(2, 7 * (256 << 10)) + data[7 * (256 << 10) :])
    going = run.going(2, 1, None)
    share = write_files(run.store(), run.image(2), [("0.0", memoryview(moved))], going=going, packing="compressed")
    assert share.part.counts.written == len(moved), "an eighth of the old pack is left"


def test_any_range_of_a_compressed_step_can_be_read(run: Run) -> None:
    data, draw = weights(1, 1_500_000), random.Random(3)
    save(run, 1, data, "compressed")
    with Step(run, 1) as step:
        for _ in range(40):
            begin, end = sorted(draw.randrange(len(data)) for _ in range(2))
            assert bytes(step.read("0.0", begin, end)) == data[begin:end]


def test_a_changed_bit_of_a_step_is_named_and_the_step_before_loads(run: Run) -> None:
    save(run, 1, weights(1, 600_000), "compressed")
    manifest, _ = save(run, 2, weights(2, 600_000), "compressed")
    pack = run.folder / "packs" / f"{manifest.packs[0].id}.pack"
    with pack.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)[0]
        file.seek(5000)
        file.write(bytes([byte ^ 16]))
    for act in (lambda: read(run, 2), lambda: run.verify(2)):
        with pytest.raises(Damaged, match="not what was written"):
            act()
    assert read(run, 1) == weights(1, 600_000)


# ---- the save helper ------------------------------------------------------------------------------------------------


def test_the_helper_compresses_and_this_process_never_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share that would be written here as it is starts a helper where it is to be compressed."""
    monkeypatch.setattr("gcr.image.pack.pace.encode", lambda _data: pytest.fail("this process compresses"))
    data, saver = weights(1, 500_000), SaveHelper()
    files: list[File] = [("0.0", memoryview(data))]
    try:
        assert saver._process is None
        saving = Saving(run, 1)
        share = saver.write([], run, 1, files, packing="compressed")
        saving.commit([share], b"what it is", 1, Framework("torch", {}))
        assert saver._process is not None
        assert share.part.pace
        assert share.part.pace.plain_bytes == len(data)
        assert share.part.counts.stored < 0.8 * share.part.counts.written
    finally:
        saver.close()
    assert read(run, 1) == data


def test_where_no_helper_starts_nothing_is_compressed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    saver, data = SaveHelper(), weights(1, 500_000)
    saving = Saving(run, 1)
    share = saver.write([], run, 1, [("0.0", memoryview(data))], packing="compressed")
    saving.commit([share], b"what it is", 1, Framework("torch", {}), write_share)
    assert saver._process is None
    assert share.part.counts.stored == share.part.counts.written
    assert read(run, 1) == data
