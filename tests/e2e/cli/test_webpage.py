"""The page of `gcr inspect --html`, in a real browser: it asks for nothing else, and says what `--json` says."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from imaging import bytes_of, described, mapped, write

from gcr import units
from gcr.image.files.manifest import Manifest
from gcr.image.store.store import Store
from gcr.image.write.publishing import Contents
from gcr.image.write.writer import ImageWriter

from . import browser
from .conftest import Gcr

MIB = 1 << 20
HOSTILE = '<img src="http://example.com/x"><script>console.log("here")</script>'
MARKS = {"prepared": 0.2, "stop": 0.2, "quiesced": 0.25, "handed_over": 0.3, "drained": 0.9, "frozen": 0.7, "staged": 1}
ALLOCATIONS = [bytes_of(1, MIB), bytes(9 * MIB), bytes_of(2, 3 * MIB), *(bytes_of(n, 70_000) for n in range(3, 8))]


pytestmark = pytest.mark.skipif(browser.found() is None, reason="there is no Chromium")


@pytest.fixture
def page(gcr: Gcr, store: Store, tmp_path: Path) -> Iterator[tuple[browser.Page, Path, dict[str, Any]]]:
    """The browser, the page of an image with all that there can be in one, and what `--json` says of it."""
    write(store, "one", ALLOCATIONS[:1])
    sizes = [len(data) for data in ALLOCATIONS]

    def all_of_it(contents: Contents) -> Manifest:
        manifest = described("warm", sizes, HOSTILE)(contents)
        source = replace(manifest.source, models={"GPU-1": "a " * 40})
        costs = replace(manifest.costs, parent="one", bytes_changed=4 * MIB)
        return replace(manifest, timings=MARKS, source=source, costs=costs)

    with ImageWriter(store, "warm") as writer:
        writer.add((mapped(data), ()) for data in ALLOCATIONS)
        writer.commit(all_of_it)
    file = tmp_path / "warm.html"
    facts = gcr("inspect", "warm", "--html", str(file), "--json").json
    (tmp_path / "browser").mkdir()
    with browser.opened(tmp_path / "browser") as opened:
        yield opened, file, facts


ROWS = """[...document.querySelectorAll("section")].map(section => [section.id,
  [...section.querySelectorAll("li")].map(row => [
    row.querySelector(".name").innerText,
    ...[".aside", ".amount"].map(kind => row.querySelector(kind)).map(it => [Number(it.value), it.innerText]),
    ...["left", "right"].map(side => {
      const track = row.querySelector(".track").getBoundingClientRect()
      const bar = row.querySelector(".track i").getBoundingClientRect()
      return (bar[side] - track.left) / track.width
    }),
  ])])"""
UNSEEN = """[...document.querySelectorAll("h1, h2, section p, li, li *, dt, dd, .simulated, data")].filter(it => {
  const box = it.getBoundingClientRect()
  if (it.tagName == "I" && parseFloat(it.style.width) == 0) return false
  return !it.checkVisibility() || box.height < 1 || box.left < 0 || box.right > innerWidth
}).map(it => it.outerHTML)"""
OVERLAPS = """[...document.querySelectorAll("li")].filter(row => {
  const boxes = [...row.children].map(it => it.getBoundingClientRect())
  return boxes.some((a, n) => boxes.slice(n + 1).some(b =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1))
}).map(row => row.innerText)"""
COLOURS = """[getComputedStyle(document.body).backgroundColor,
  ...[...document.querySelectorAll("section")].map(it => getComputedStyle(it).backgroundColor),
  ...[...document.querySelectorAll("h1, section p, .name, .aside, .between, dt, .simulated")]
    .map(it => getComputedStyle(it).color)]"""


def test_it_asks_for_nothing_and_says_what_the_figures_are(page: tuple[browser.Page, Path, dict[str, Any]]) -> None:
    tab, file, facts = page
    tab.look(1280, "light")
    tab.open(file)
    said = dict(tab.ask(ROWS))
    assert [*said] == ["bytes", "checkpoint", "allocations", "facts"]
    classes = {f"up to {units.size(each['limit'])}": (each["count"], each["bytes"]) for each in facts["allocations"]}
    assert {row[0]: (row[1][0], row[2][0]) for row in said["allocations"]} == classes
    assert [row[2] for row in said["allocations"]] == [
        [each["bytes"], units.size(each["bytes"])] for each in facts["allocations"]
    ]
    sizes = [*facts["origins"].values(), facts["bytes_changed"]]
    assert [row[2] for row in said["bytes"]] == [[size, units.size(size)] for size in sizes]
    assert [row[1][0] for row in said["bytes"]] == [size / facts["bytes_total"] for size in sizes]
    phases = {each["name"]: (each["begin"], each["end"] - each["begin"]) for each in facts["phases"]}
    assert {row[0]: (row[1][0], row[2][0]) for row in said["checkpoint"]} == phases
    assert tab.ask('document.querySelector("header").innerText').count(HOSTILE) == 1
    assert (tab.requests, tab.complaints) == ([file.as_uri()], [])


def test_bars_are_as_long_as_what_they_stand_for(page: tuple[browser.Page, Path, dict[str, Any]]) -> None:
    tab, file, facts = page
    tab.look(1280, "light")
    tab.open(file)
    said = dict(tab.ask(ROWS))
    most, end = max(each["bytes"] for each in facts["allocations"]), max(each["end"] for each in facts["phases"])
    wanted = [(0, size / facts["bytes_total"]) for size in (*facts["origins"].values(), facts["bytes_changed"])]
    wanted += [(each["begin"] / end, each["end"] / end) for each in facts["phases"]]
    wanted += [(0, each["bytes"] / most) for each in facts["allocations"]]
    bars = [(left, right) for rows in said.values() for _, _, _, left, right in rows]
    assert bars == [pytest.approx(each, abs=0.008) for each in wanted]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 640, 1280])
def test_on_any_screen(page: tuple[browser.Page, Path, dict[str, Any]], width: int, scheme: str) -> None:
    """No text is cut off, covered or hard to read, and no screen scrolls sideways."""
    readable(*page[:2], width, scheme)


def readable(tab: browser.Page, file: Path, width: int, scheme: str) -> None:
    """Looks at the page on a screen of so many pixels."""
    tab.look(width, scheme)
    tab.open(file)
    assert tab.ask("document.scrollingElement.scrollWidth") <= width
    assert tab.ask(UNSEEN) == []
    assert tab.ask(OVERLAPS) == []
    below, *others = [browser.luminance(colour) for colour in tab.ask(COLOURS)]
    cards, words = others[:4], others[4:]
    assert (below > 0.5) == (scheme == "light")
    assert min(browser.contrast(word, ground) for word in words for ground in (below, *cards)) >= 4.5  # WCAG 2.1, AA
