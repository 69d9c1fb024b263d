"""The benchmark of training saves, rehearsed on the processor: its numbers are no results."""

import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import images
import report_saves
import saves
from program import stop_daemon

SAVE: dict[str, Any] = {
    "way": "copy",
    "why": "",
    "call_s": 0.020,
    "done_s": 8.0,
    "step_s": 0.1005,
    "step_p99_s": 0.102,
    "undisturbed_s": 0.1,
    "grown_bytes": {"VmLck": 0, "VmPin": 0, "RssAnon": 9},
}
LOADS = {
    "warm_s": 2.0,
    "cold_s": 4.0,
    "plain_read_bytes_per_s": 2e9,
    "plain_warm_read_bytes_per_s": 1e9,
    "bytes": 2_000_000_000,
    "bytes_right": True,
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Gives programs a daemon of their own, which it ends, and a folder for their saves."""
    for name in ("run", "state", "store"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GCR_BENCHMARK_STORE", str(tmp_path / "store"))
    yield tmp_path / "store"
    stop_daemon()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize(
    "way, why, size", [("staged", "gcr run", 1 << 25), ("window", "no tensor of the state", 1 << 24)]
)
def test_a_save_and_its_loads(way: str, why: str, size: int, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "UNDISTURBED_SECONDS", 0.2)
    monkeypatch.setattr(saves, "PROBE", 1 << 20)
    monkeypatch.setattr(images, "drop_caches", lambda: None)
    *_, found = saves.blocked(1 / 32, "--device", "cpu", ways=(way,))
    rows = found[way]["saves"]
    assert [row["step"] for row in rows] == [*range(1, saves.WAYS[way] + 1)]
    assert all(row["way"] == "staged" and why in row["why"] for row in rows)
    assert all(0 < row["blocked_s"] <= row["call_s"] and 0 < row["step_s"] <= row["step_p99_s"] for row in rows)
    assert found[way]["loads"]["bytes_right"] and found[way]["loads"]["bytes"] >= size
    assert not [*store.iterdir()]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_pccheck_saves_what_was_there_and_a_later_save_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its optimizer's step waits for the copy, so a state that changes at once is saved as it was."""
    import torch
    from pccheck_way import ByPccheck

    monkeypatch.setattr("pccheck_way.CHUNK_BYTES", 1 << 10)
    tensors = [torch.nn.Parameter(torch.randn(size)) for size in (1, 500, 3000)]
    optimizer = torch.optim.SGD(tensors, lr=1.0)
    way = ByPccheck(tmp_path, tensors, 2)
    for step in range(5):
        for each in tensors:
            each.grad = torch.randn_like(each)
        before = [each.detach().clone() for each in tensors]
        done = way.save(step, None)
        optimizer.step()
        until(done)
        assert not way.way["skipped"]
        way.load(step, None)
        assert all(torch.equal(each, was) for each, was in zip(tensors, before, strict=True))
    assert way._slots.whole and way._slots.whole[0] == 4
    way._slots.commit(2, slot := way._slots.free.get())
    assert way._slots.whole[0] == 4, "an earlier step that ends later does not win"
    assert slot in {way._slots.free.get() for _ in range(2)}
    way.close()


def until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("changed", "unmet"),
    [
        ({}, {"load to the device, cold_s, of a plain reader's rate"}),
        ({"way": "staged"}, {"saves by copy that were staged instead"}),
        ({"call_s": 0.2}, {"a save by copy blocks", "… to the best of DCP"}),
        ({"step_s": 0.2}, {"steps while a save drains, slower by (step_s)"}),
        ({"grown_bytes": {"VmLck": 1, "VmPin": 0}}, {"host memory that the trainer pins for it"}),
    ],
)
def test_the_report_judges_saves(changed: dict[str, Any], unmet: set[str]) -> None:
    always = "load to the device, cold_s, of a plain reader's rate"
    found = {"copy": {"saves": [SAVE | changed], "loads": LOADS}, "async_save": {"saves": [SAVE | {"call_s": 0.5}]}}
    found["async_pinned"] = {"failed": "the program ended with 1"}
    told = {line[0] for line in report_saves.lines({"saves": found}) if line[3] == "NO"}
    assert told == unmet | {always}
    said = {line[0]: line[1] for line in report_saves.lines({"saves": found})}
    assert said["a save blocks the training: async_pinned"] == "the program ended with 1"


@pytest.mark.parametrize(
    ("changed", "unmet"),
    [
        ({}, set()),
        ({"way": "ring"}, {"saves by window that went another way"}),
        ({"call_s": 0.006}, {"a save by window blocks"}),
    ],
)
def test_the_report_judges_saves_by_window(changed: dict[str, Any], unmet: set[str]) -> None:
    save = SAVE | {"way": "window", "call_s": 0.004, "waited_s": 0.3} | changed
    found = [*report_saves.lines({"saves": {"window": {"saves": [save], "loads": LOADS}}})]
    assert {line[0] for line in found if line[3] == "NO"} == unmet
    assert ("… and then a step waits", "300.0 ms", "", "") in found


def test_a_way_of_pytorch_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def by(way: str, known: dict[str, Any], _gib: float) -> Iterator[dict[str, Any]]:
        if way in broken:
            raise SystemExit(f"benchmark: {way}")
        known[way] = {"saves": []}
        yield known

    monkeypatch.setattr(saves, "_by", by)
    broken = {"async_save"}
    *_, found = saves.blocked(1.0, ways=("copy", "async_save", "async_pinned"))
    assert found == {
        "copy": {"saves": []},
        "async_save": {"failed": "benchmark: async_save"},
        "async_pinned": {"saves": []},
    }
    broken.add("copy")
    with pytest.raises(SystemExit):
        [*saves.blocked(1.0, ways=("copy",))]
