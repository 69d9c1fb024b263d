"""StorageWriter, StorageReader and AsyncStager with the real PyTorch on the CPU, with gloo, on 1, 2 and 4 ranks."""

import itertools
import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gcr.checkpoints.run import run_in

DTYPES = (
    *("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
)


def spec(shape: Sequence[int], dtype: str = "float32", seed: int = 0, shard: int | str | None = 0) -> dict[str, Any]:
    return {"shape": [*shape], "dtype": dtype, "seed": seed, "shard": shard}


SPECS = {
    "rows": spec((37, 11), seed=1),
    "columns": spec((8, 70_001), "bfloat16", seed=2, shard=1),
    "whole": spec((5, 6), seed=3, shard=None),
    "plain": spec((1000,), "int64", seed=4, shard="plain"),
    "few": spec((2, 3), "float8_e4m3fn", seed=5),
    "number": spec((), seed=6, shard="plain"),
    "none": spec((0, 4), seed=7, shard="plain"),
}
CHANGED = {**SPECS, "rows": spec((37, 11), seed=100)}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_saved_by_some_ranks_and_loaded_by_others(ranks: Any, tmp_path: Path, world: int) -> None:
    store = str(tmp_path / "store")
    ranks("save", world, store=store, steps={1: CHANGED, 7: SPECS})
    for others, piece_bytes in ((1, 0), (1, 500), (2, 0), (2, 1), (4, 200_000)):
        for found in ranks("load", others, store=store, specs=SPECS, piece_bytes=piece_bytes):
            assert found == (7, ["a", 7], [])
    assert ranks("load", 1, store=store, specs=SPECS, step=1)[0] == (1, ["a", 1], ["rows"])
    run = run_in(store, "train")
    assert run.verify(7) > 0
    assert run.manifest(7).source.progress == {"step": 7, "world": world}


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(5_000, 20_000))  # several chunks
    ways: list[int | str | None] = ["plain", None, *range(len(shape))]
    return spec(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)), draw(st.sampled_from(ways)))


@settings(max_examples=8, suppress_health_check=[*HealthCheck])
@given(
    st.lists(tensors(), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 100, 1000, 40_000]),
)
def test_any_state_is_resharded(
    ranks: Any, tmp_path: Path, drawn: list[dict[str, Any]], some: int, others: int, piece_bytes: int
) -> None:
    specs = {f"t{number}": each for number, each in enumerate(drawn)}
    store = tempfile.mkdtemp(dir=tmp_path) + "/store"
    ranks("save", some, store=store, steps={1: specs}, chunk_bytes=32 << 10)
    found = ranks("load", others, store=store, specs=specs, piece_bytes=piece_bytes)
    assert found == [(1, ["a", 1], [])] * others


def test_every_kind_of_tensor_comes_back_bit_by_bit(ranks: Any, tmp_path: Path) -> None:
    assert ranks("kinds", store=str(tmp_path / "store"), dtypes=DTYPES) == [[]]


def test_what_cannot_be_saved_is_refused_by_name(ranks: Any, tmp_path: Path) -> None:
    found = ranks("refusals", store=str(tmp_path / "store"))[0]
    kinds = {"meta": "meta", "sparse": "sparse", "csr": "sparse_csr", "quantised": "quantised", "wrapping": "wraps"}
    found.pop("nested saved")  # an error of PyTorch's own, before it asks a writer
    assert found.pop("nested staged")[0] == "NotSaveable"
    for name, way in itertools.product(kinds, ("saved", "staged")):
        kind, text = found.pop(f"{name} {way}")
        assert (kind, f"a.{name}" in text, kinds[name] in text) == ("NotSaveable", True, True), text
    assert {name: each[0] for name, each in found.items()} == {
        "twice": "StepExists",
        "without a step": "UsageError",
        "without collectives": "UsageError",
    }


def test_a_checkpoint_id_names_the_step(ranks: Any, tmp_path: Path) -> None:
    found = ranks("ids", store=str(tmp_path / "store"))[0]
    assert found == [[20] * 3, [10] * 3, "checkpoint_id 'final' names no step"]


def test_a_load_goes_through_a_few_slots_none_of_which_is_used_before_its_copy_ended(
    ranks: Any, tmp_path: Path
) -> None:
    """The next pieces are read while two are copied. A load that fails waits for its copies."""
    unequal, copies, slots, reads, left = ranks(
        "loading_programs.loads_late", store=str(tmp_path / "right"), wrong=False
    )[0]
    assert (unequal, copies, slots, reads, left) == ([], 2, 4, 4, 0)
    assert ranks("loading_programs.loads_late", store=str(tmp_path / "wrong"), wrong=True) == [("damaged", 0)]


REFUSES = """
static int last, refused;
int cudaHostRegister(void* at, unsigned long size, unsigned flags) { refused++; return last = 2; }
int cudaGetLastError(void) { int error = last; last = 0; return error; }
int refusals(void) { return refused; }
"""


def test_memory_that_cannot_be_page_locked_leaves_no_error_behind(ranks: Any, tmp_path: Path) -> None:
    """PyTorch looks for CUDA's last error after each kernel, and would end the training by this one."""
    source, library = tmp_path / "cuda.c", str(tmp_path / "cuda.so")
    source.write_text(REFUSES)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source)], check=True, timeout=60)
    assert ranks("loading_programs.locks_in_vain", cuda=library) == [([False, False], 1, 0)]


def test_data_of_another_planner_is_kept(ranks: Any, tmp_path: Path) -> None:
    assert ranks("other_planner", store=str(tmp_path / "store")) == [([1.0] * 3, {"a": {1, 2}})]


@pytest.mark.parametrize("world", [1, 2])
def test_a_planner_may_keep_its_plans(ranks: Any, tmp_path: Path, world: int) -> None:
    found = [(1, [1] * 3), (2, [2] * 3), (3, [3] * 4), (4, [4] * 4)]
    assert ranks("cached_plans", world, store=str(tmp_path / "store")) == [found] * world


def test_ranks_that_save_or_load_different_steps_are_refused(ranks: Any, tmp_path: Path) -> None:
    for saved, one, two, loaded in ranks("other_steps", 2, store=str(tmp_path / "store")):
        assert (one, two) == (None, None)
        assert saved == ["UsageError", "run train: ranks save different steps: 5, 6"]
        assert loaded == ["WrongImage", "run train: ranks have opened different steps: 1, 2"]


@pytest.mark.parametrize("world", [1, 2])
def test_staged_tensors_may_change_while_they_are_saved(ranks: Any, tmp_path: Path, world: int) -> None:
    for found, sizes, state in ranks("staged", world, store=str(tmp_path / "store")):
        assert found == [(True, [step], step) for step in range(1, 7)]
        assert 0 <= sizes[0] - state < 128  # each of two tensors begins at a multiple of 64
        assert sizes[-1] <= 2 * sizes[0]  # a save that is just over may still have its buffers


def test_what_has_not_changed_costs_nothing_after_the_first_save(ranks: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    ranks("save", 2, store=store, steps={1: CHANGED, 2: SPECS, 3: SPECS})
    first, second, third = (run_in(store, "train").manifest(step).costs for step in (1, 2, 3))
    assert first.bytes_written > 500_000
    assert second.bytes_written < 10_000
    assert third.bytes_written < 5000  # the objects that have the step


def test_the_programs_of_the_page_run(ranks: Any, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/training.md").read_text()
    one, other = (part.partition("```")[0].replace("/data", str(tmp_path)) for part in page.split("```python\n")[1:])
    for begins in (0, 10):
        assert ranks("runs", store="", code=one)[0]["start"] == begins
    assert run_in(tmp_path / "run", "train").steps() == [18, 19, 20]
    ranks("runs", store="", code="import torch\nstate = {'a': torch.ones(3)}\n" + other)
    assert run_in(tmp_path / "run", "train").steps() == [18, 19, 20, 1000, 1001]


POINTS = [(1, "share_written"), (1, "share_finished")]
POINTS += [(0, point) for point in ("begun", "share_written", "share_finished", "commit")]


@pytest.mark.parametrize("victim, point", POINTS)
def test_a_save_of_which_a_rank_died_is_none(ranks: Any, tmp_path: Path, victim: int, point: str) -> None:
    store, faults = str(tmp_path / "store"), str(tmp_path / "faults")
    ended = ranks.ended("dies", 2, store=store, victim=victim, point=point, faults=faults)
    assert ended[victim].code == -9
    assert ended[1 - victim].code == 0 and ended[1 - victim].result, ended
    assert run_in(store, "train").steps() == [1]
    specs = {"a": spec((40, 3000), seed=1)}
    assert ranks("try_save", 2, store=store, step=2, specs=specs) == [None, None]  # no lock is left
    assert run_in(store, "train").remove([1]) > 0
    assert run_in(store, "train").verify(2) > 0


def test_a_coordinator_that_dies_after_it_has_published_leaves_the_step(ranks: Any, tmp_path: Path) -> None:
    store, faults = str(tmp_path / "store"), str(tmp_path / "faults")
    assert ranks.ended("dies", 2, store=store, victim=0, point="published", faults=faults)[0].code == -9
    run = run_in(store, "train")
    assert run.steps() == [1, 2]
    assert run.verify(2) > 0


def test_the_newest_step_loads_whenever_a_rank_was_killed(ranks: Any, tmp_path: Path) -> None:
    store, instants = str(tmp_path / "store"), random.Random(28)
    before = 0
    for number in range(10):
        instant = {"saves": int(number > 2), "after": instants.uniform(0, 0.2)}
        ended = ranks.ended("goes_on", 2, store=store, victim=number % 2, **instant)
        assert ended[number % 2].code == -9, ended
        for step, wrong in ranks("newest", 1 + number % 2, store=store):
            assert ((step or 0) >= before, wrong) == (True, [])
        before = step or 0
    assert before > 0
