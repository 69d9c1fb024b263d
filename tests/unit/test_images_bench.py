"""The benchmark of images, rehearsed on a simulated device: that it runs, and that its rows say what happened."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import image_bursts
import image_ways
import images
import program
import report_images
import standstill

from gcr.image.chunks.entry import BLOCK
from gcr.image.disk import bounce
from gcr.image.disk.bounce import huge_buffer as bounced
from gcr.image.store.store import Store
from gcr.image.write.writer import ImageWriter
from gcr.testing.machine import PATIENCE, SimulatedMachine, until

MIB = 1 << 20
HELD_SECONDS = 0.3


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedMachine]:
    machine = SimulatedMachine(tmp_path, "nvidia")
    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(program.Program, "__init__", with_flags(program.Program.__init__, machine))
    monkeypatch.setattr(images, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(images, "drop_caches", lambda: None)
    yield machine
    machine.close()


def with_flags(made, machine):  # type: ignore[no-untyped-def]
    return lambda self, command, job, **more: made(self, command, job, flags=machine.world, **more)


def reported(what: str, found: dict[str, Any], count: int) -> list[report_images.Line]:
    """So many lines, each with whether its goal was met, or without a goal."""
    lines = list(report_images.lines(found))
    assert len([line for line in lines if what in line[0]]) >= 1 and len(lines) == count
    assert all(line[1] and (line[3] in ("yes", "NO") if line[2] else line[3] == "") for line in lines)
    return lines


@pytest.mark.slow
def test_full_images(simulated: SimulatedMachine) -> None:
    known = []
    for whole in images.full(images.program(1 / 16, "--plain"), cycles=2):
        known.append(len(whole["cycles"]))
    assert known == [1, 2, 2, 2]
    assert whole["verified"]
    assert all(row["bytes_right"] and row["bytes_written"] == row["bytes_total"] == 64 * MIB for row in whole["cycles"])
    assert whole["unchanged_written_share"] == 0
    assert all(min(row["disk"].values()) > 0 for row in whole["cycles"])
    reported("full image", {"image-full": whole}, 4)


@pytest.mark.slow
def test_streamed_images(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCR_SLOT_BYTES", str(2 * MIB))
    monkeypatch.setenv("GCR_SEGMENT_BYTES", str(2 * MIB))
    *_, found = images.streamed(images.program(1 / 16, "--plain"), arena=17 * MIB)
    assert [row["streamed"] and row["bytes_right"] for row in found["cycles"]] == [True, True]
    assert all(row["bytes_written"] > 60 * MIB and row["vram_after_bytes"] == 0 for row in found["cycles"])
    reported("streamed", {"image-streamed": found}, 4)


def test_standstill_by_gcr(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "UNDISTURBED_SECONDS", 0.5)
    with ThreadPoolExecutor(1) as beside:
        held = beside.submit(hold_stops, simulated, 2)
        rows = standstill.by_gcr(standstill.program(1 / 32, 0.05, "--plain"), cycles=2)
        held.result()
    for row in rows:
        assert row["bytes_total"] == 32 * MIB
        assert row["steps"] > 1 and row["watched_s"] > row["durable_s"]
        assert HELD_SECONDS <= row["stop_s"] < row["durable_s"]
        assert HELD_SECONDS <= row["longest_s"] < row["watched_s"]
        assert row["stands_s"] < row["longest_s"]


def hold_stops(machine: SimulatedMachine, count: int) -> None:
    """The program stands still so long in each of the next so many checkpoints."""
    held = machine.folder / "held"
    for _ in range(count):
        machine.inject(f"checkpoint.quiesced hold {held}")
        until(held.exists, PATIENCE, "the program stands still")
        time.sleep(HELD_SECONDS)
        held.unlink()


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_standstill_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the processor: its numbers are no results."""
    monkeypatch.setattr(standstill, "UNDISTURBED_SECONDS", 0.5)
    monkeypatch.setenv("GCR_BENCHMARK_STORE", str(tmp_path))
    ways = [*standstill.by_torch(standstill.program(1 / 8, 0.5, "--device", "cpu"), cycles=2)]
    assert [way for way, _ in ways] == ["torch_save", "async_save"] * 2
    found = dict(ways)
    for save, beside in zip(found["torch_save"], found["async_save"], strict=True):
        assert 0 < save["call_s"] == save["stands_s"]
        assert min(beside["call_s"], beside["done_s"]) > 0 and beside["steps"] > 0
        assert beside["stands_s"] < beside["call_s"] + beside["longest_s"]
    assert not [*tmp_path.iterdir()]


def test_our_longest_is_compared_with_their_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("torch_save", [{"stands_s": 8.0}, {"stands_s": 10.0}]), ("async_save", [{"stands_s": 4.0}])]
    ours = iter([[{"stands_s": 0.5}, {"stands_s": 0.1}], [{"stands_s": 0.2}, {"stands_s": 0.2}]])
    monkeypatch.setattr(standstill, "by_torch", lambda _command: iter(rows))
    monkeypatch.setattr(standstill, "by_gcr", lambda _command: next(ours))
    *_, found = standstill.measure(1)
    assert (found["image_to_torch_save"], found["image_to_async_save"]) == (0.0625, 0.125)
    lines = reported("stands still", {"image-standstill": found}, 4)
    assert [line[3] for line in lines] == ["", "", "yes", "NO"]


def test_live_images(simulated: SimulatedMachine) -> None:
    *_, found = images.live(images.program(1 / 32, "--plain"), cycles=2)
    for row in found["cycles"]:
        assert row["bytes_right"] and row["stop_s"] > 0
        assert 0 < row["written_share"] == row["changed_share"] == row["copied_share"] < 0.05
    assert reported("live", {"image-live": found}, 3)[2][1] == "0 of 2"


@pytest.mark.slow
def test_live_images_of_a_job_that_allocates(simulated: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "GROWTH", 100)
    monkeypatch.setattr(images, "GROWTH_PAUSE", 0.003)
    *_, found = images.growing(images.program(1 / 8, "--plain"), cycles=2)
    for row in found["cycles"]:
        assert row["bytes_right"] and row["stop_s"] > 0
        assert 0 < row["handles"] <= (row["bytes_total"] - (1 << 27)) // (2 * MIB) + 2
    reported("live", {"image-growing": found}, 2)


STEPS = """
import sys
sys.path[:0] = {paths}
from device import open_device
from slices import serve
device = open_device("nvidia")
stream, memory = device.stream(), device.allocate(160 << 20)
def step():
    device.fill(memory, 1 << 10, 7, stream)
    device.wait(stream)
serve(step)
"""


@pytest.mark.slow
def test_steps_while_a_live_image_is_copied(simulated: SimulatedMachine, tmp_path: Path) -> None:
    folders = [str(Path(images.__file__).parent), str(images.HERE.parent / "tests" / "victims")]
    (tmp_path / "steps.py").write_text(STEPS.format(paths=folders))
    *_, found = images.training([sys.executable, str(tmp_path / "steps.py")], cycles=2, undisturbed=0.4)
    assert len(found["copy_s"]) == 2 and min(found["copy_s"]) > 0
    assert min(found["undisturbed"]) > 0 and len(found["undisturbed"]) >= 4
    reported("steps/s", {"image-training": found}, 1)


def test_a_slice_counts_where_it_lies_as_a_whole() -> None:
    at = [0.5, 3.0, 3.9, 4.2, 5.5, 8.9, 9.5]
    slices = [images.Slice(begun, begun + 0.3, number) for number, begun in enumerate(at)]
    found = images._sorted(slices, [images.Taken(2.0, 2.5, 4.0, 8.0)])
    assert found == {"during": [1], "undisturbed": [0, 6]}


def test_ways_to_a_disk_and_sizes_of_chunks(tmp_path: Path) -> None:
    found = image_ways.measure(tmp_path, 16 * MIB + 4096, 1)
    ways = found["ways_bytes_per_s"]
    rings = {name for name in ways if "io_uring" in name}
    assert len(ways) == 26 and len(rings) == 6
    if find_spec("liburing") is None:
        assert {ways.pop(name) for name in rings} == {"No module named 'liburing'"}
    assert all(isinstance(rate, float) and rate > 0 for rate in ways.values()), ways
    small, large = found["chunk_sizes"][0], found["chunk_sizes"][-1]
    assert small["beside_bytes_per_gib"] > large["beside_bytes_per_gib"] > 0
    assert pytest.approx(small["written_for_a_hundredth"]) == 0.01 and large["written_for_a_hundredth"] > 0.4
    assert list(tmp_path.iterdir()) == []


def test_bursts_beside_a_plain_writer_and_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("SLOT_BYTES", 8 * MIB), ("WARM_BYTES", 8 * MIB)):
        monkeypatch.setattr(image_bursts, name, size)
    found = image_bursts.measure(tmp_path, 32 * MIB, 0.0)
    for what, ways in (("write", image_bursts.WRITING), ("read", image_bursts.READING)):
        rows, plain = found[what]["ways"], found[what]["plain_bytes_per_s"]
        assert rows.keys() == ways.keys() and len(plain) == len(ways) + 1
        assert all(row["share"] == row["shares"][0] > 0 and row["rates"][0] > 0 for row in rows.values())
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.on_disk
def test_a_way_is_another_writer_and_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that they take tells the ways apart."""
    made, way = Counter[int](), image_bursts.Way(asking=1, waiting=2, group_bytes=MIB)
    monkeypatch.setattr(image_bursts, "WARM_BYTES", MIB)
    monkeypatch.setattr(bounce, "huge_buffer", lambda size: made.update([size]) or bounced(size))
    memory = image_ways.random_memory(8 * MIB)
    image_bursts.writes(tmp_path, memory, way)
    assert made == {MIB + BLOCK: 3}
    store = Store(tmp_path / "store")
    with ImageWriter(store, "burst") as image:
        image.add([(memory, {})])
        image.commit(lambda contents: image_ways.described("burst", contents, image.chunk_bytes))
    made.clear()
    monkeypatch.setattr(image_bursts, "SLOT_BYTES", 2 * MIB)
    slots = [image_ways.random_memory(2 * MIB) for _ in range(2)]
    image_bursts.reads(store, len(memory), slots, way)
    assert made == {MIB: 3}
    assert slots[0] != slots[1] and bytes(slots[0]) in bytes(memory)
