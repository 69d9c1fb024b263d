"""`gcr inspect RUN`: a run on the terminal and as JSON, and its page in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gcr import units
from gcr.checkpoints.marks import Marks
from gcr.checkpoints.run import run_in
from gcr.checkpoints.saving import Framework, Saving
from gcr.checkpoints.share import write_files
from gcr.image.pack.pace import Packing
from gcr.image.store.store import Store

from . import browser
from .conftest import Gcr
from .test_webpage import HOSTILE, ROWS, readable

CHUNK = 32 << 10
LONG = "optimizer.state.model.layers.17.self_attn.q_proj.weight.exp_avg_sq"
SIZES = {LONG: 5 * CHUNK, HOSTILE: 2 * CHUNK, **{f"layer.{n}": 100 + n for n in range(60)}}


def save(store: Path, step: int, packing: Packing = "plain") -> None:
    """The step before had the first chunk of each tensor otherwise."""
    marks, run = Marks(), run_in(store, "train")
    saving = Saving(run, step, CHUNK, marks=marks)
    for mark in ("returned", "safe", "drained"):
        marks.mark(mark)
    datas = [bytes([step // 100]) + bytes([n]) * (size - 1) for n, size in enumerate(SIZES.values())]
    tensors = {
        name: {"dtype": "uint8", "size": [size], "shards": [{"offsets": [0], "sizes": [size], "file": f"0.{n}"}]}
        for n, (name, size) in enumerate(SIZES.items())
    }
    record = json.dumps({"format": 1, "tensors": tensors, "objects": {}, "paths": None}).encode()
    files = [(f"0.{n}", memoryview(data)) for n, data in enumerate(datas)]
    share = write_files(run.store(), run.image(step), files, CHUNK, packing=packing)
    saving.commit([share], record, 2, Framework("torch", {"torch": "2.13"}))


@pytest.fixture
def facts(gcr: Gcr, store: Store, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The page of a run, and what `--json` says of it, which is compared with the schema."""
    for step in (1000, 2000, 3000):
        save(store.path, step)
    return tmp_path / "train.html", gcr("inspect", "train", "--html", str(tmp_path / "train.html"), "--json").json


def test_a_run_is_shown_where_no_image_has_its_name(gcr: Gcr, facts: tuple[Path, dict[str, Any]]) -> None:
    file, said = facts
    drawn = gcr("inspect", "train").out
    assert "run of a training (torch), step 3,000" in drawn and max(map(len, drawn.splitlines())) <= 80
    assert "  saved by    2 ranks\n" in drawn and "Bytes changed since step 2,000, which are" in drawn
    assert (said["run"], said["count"], said["first"], said["last"]) == ("train", 3, 1000, 3000)
    assert gcr("inspect", "train", "--html", "-").out == file.read_text()
    assert gcr("inspect", "trai", "--json").json["error"]["code"] == "no_such_image"
    image = gcr("inspect", "train.000000003000", "--json").json
    assert [phase["name"] for phase in image["phases"]] == ["wait", "drain", "write"]


def test_it_says_what_was_compressed(gcr: Gcr, store: Store) -> None:
    for step in (1000, 2000):
        save(store.path, step, packing="plain" if step == 1000 else "compressed")
    before, last = gcr("inspect", "train", "--json").json["steps"]
    assert before["bytes_stored"] == before["bytes_written"]
    assert 0 < last["bytes_stored"] < 0.5 * last["bytes_written"]
    share = 100 * last["bytes_stored"] / last["bytes_written"]
    assert f"compressed  to {share:.0f} %: " in gcr("inspect", "train").out


@pytest.fixture
def page(facts: tuple[Path, dict[str, Any]], tmp_path: Path) -> Iterator[tuple[browser.Page, Path, dict[str, Any]]]:
    if browser.found() is None:
        pytest.skip("there is no Chromium")
    (tmp_path / "browser").mkdir()
    with browser.opened(tmp_path / "browser") as opened:
        yield opened, *facts


def test_its_page_says_what_the_figures_are(page: tuple[browser.Page, Path, dict[str, Any]]) -> None:
    tab, file, facts = page
    tab.look(1280, "light")
    tab.open(file)
    said, steps, contents = dict(tab.ask(ROWS)), facts["steps"], facts["newest"]["contents"]
    assert [*said] == ["saves", "stalls", "tensors", "facts"]
    assert [row[0].split()[0] for row in said["saves"]] == ["1,000", "2,000", "3,000"]
    for row, step in zip(said["saves"], steps, strict=True):
        assert [row[1][0], row[2][0]] == [step["bytes_total"], step["bytes_written"]]
        share = step["bytes_written"] / max(each["bytes_total"] for each in steps)
        assert row[3:] == [0, pytest.approx(share, abs=0.008)]
    stalls = [[row[1][0], row[2][0]] for row in said["stalls"]]
    assert stalls == [[step["timings"][mark] for mark in ("drained", "returned")] for step in steps]
    between = tab.ask('[...document.querySelectorAll(".between")].map(it => Number(it.value))')
    assert between == [step["timings"]["written"] for step in steps]
    shown = {each["name"]: [each["bytes_changed"], each["bytes"]] for each in contents[:40]}
    assert shown[LONG] == [CHUNK, 5 * CHUNK]
    *rows, others = said["tensors"]
    assert {row[0]: [row[1][0], row[2][0]] for row in rows} == shown
    rest = contents[40:]
    assert [others[0], others[2][0]] == [f"{len(rest)} others", sum(each["bytes"] for each in rest)]
    assert rows[0][2][1] == units.size(5 * CHUNK)
    assert (tab.requests, tab.complaints) == ([file.as_uri()], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_its_page_on_any_screen(page: tuple[browser.Page, Path, dict[str, Any]], scheme: str) -> None:
    """No text is cut off, covered or hard to read, and no screen scrolls sideways."""
    tab, file, _ = page
    for width in (320, 390, 640, 700, 1280):
        readable(tab, file, width, scheme)
