"""The page of `gcr serve`, in a real browser: it shows what `/status` says, live, and asks for nothing else."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit/serve"))

from serving import FakeJobs, config_of, front

from gcr.api.jobevents import CheckpointFailed, RestoreDone
from gcr.serve.status import Device, Job, Seen

from . import browser

HOSTILE = '<img src="http://example.com/x"><script>console.log("here")</script>'
GIB = 1 << 30
JOB = Job(
    job=HOSTILE, pid=7, state="suspended", simulated=True, bytes=3 * GIB, resident_bytes=GIB, devices=("nvidia:0",)
)
DEVICE = Device(label="nvidia:0", name="SIMULATED GPU", total_bytes=8 * GIB, used_bytes=2 * GIB, simulated=True)

pytestmark = pytest.mark.skipif(browser.found() is None, reason="there is no Chromium")

CELLS = """Object.fromEntries(["models", "swaps", "jobs"].map(id => [id,
  [...document.querySelectorAll(`#${id} tbody tr`)].map(row => [...row.cells].map(cell => cell.innerText))]))"""
BARS = """[...document.querySelectorAll("#devices li")].map(row => [row.querySelector("data").innerText,
  ...[...row.querySelectorAll(".track, .track i")].map(it => it.getBoundingClientRect().width)])"""
LINES = """[...document.querySelectorAll("#swaps line")].map(line =>
  [line.getAttribute("class"), Number(line.getAttribute("y1")) - Number(line.getAttribute("y2"))])"""
UNSEEN = """[...document.querySelectorAll("h1, h2, li > *, #about, .simulated, #axis span")].filter(it => {
  const box = it.getBoundingClientRect()
  return !it.checkVisibility() || (box.height < 1 && it.innerText) || box.left < 0 || box.right > innerWidth
}).map(it => it.outerHTML)"""
COLOURS = """[getComputedStyle(document.body).backgroundColor,
  ...[...document.querySelectorAll("section")].map(it => getComputedStyle(it).backgroundColor),
  ...[...document.querySelectorAll("h1, th, td, .name, #about, .simulated, .state, .legend, #axis")].map(
    it => getComputedStyle(it).color)]"""


def back() -> RestoreDone:
    """Returns the end of a restore, now: the page shows the last ten minutes, and a whole test run takes longer."""
    return RestoreDone(
        job="llm", transaction="1", by="", state="running", simulated=True, bytes=GIB, took_s=0.5, phases_s={},
        copy_s=0.1, bytes_per_s=40e9, link_bytes_per_s=50e9, cold=False, moved={},
    )  # fmt: skip


def not_out() -> CheckpointFailed:
    return CheckpointFailed(
        job="llm", transaction="2", by="", code="deadline", exit=4, message="late", state="running", took_s=2.0
    )


@dataclass
class Shown:
    """A front on a thread of its own, and a tab of a browser."""

    tab: browser.Page
    seen: Seen = field(default_factory=lambda: Seen((JOB,), (DEVICE,)))
    url: str = ""
    loop: Any = None
    client: Any = None
    over: Event = field(default_factory=Event)

    @contextmanager
    def served(self, folder: Path, serve: str = "") -> Iterator[None]:
        there = Event()

        async def live() -> None:
            async with front(config_of(folder, serve=serve), FakeJobs(), lambda: self.seen) as self.client:
                self.url, self.loop = self.client.url, asyncio.get_running_loop()
                there.set()
                await asyncio.to_thread(self.over.wait)

        thread = Thread(target=asyncio.run, args=(live(),))
        thread.start()
        try:
            assert there.wait(30)
            yield
        finally:
            self.over.set()
            thread.join(30)

    def told(self, expression: str, wanted: Any) -> None:
        """Waits until the page shows it."""
        end = time.monotonic() + browser.PATIENCE
        while (found := self.tab.ask(expression)) != wanted:
            assert time.monotonic() < end, found
            time.sleep(0.05)


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    (tmp_path / "browser").mkdir()
    with browser.opened(tmp_path / "browser") as tab:
        yield Shown(tab)


def test_it_shows_the_status_live_and_asks_for_nothing_else(shown: Shown, tmp_path: Path) -> None:
    with shown.served(tmp_path):
        shown.client.server.status.note(back())
        shown.client.server.status.note(not_out())
        shown.tab.look(1280, "light")
        shown.tab.visit(f"{shown.url}/")
        shown.told("document.querySelectorAll('#swaps line').length", 2)
        said = shown.tab.ask(CELLS)
        assert said["models"] == [["a", "cold", "", "0", "0"], ["b", "cold", "", "0", "0"]]
        assert said["jobs"] == [[HOSTILE, "7", "suspended", "nvidia:0", "3.0 GiB", "1.0 GiB"]]
        assert [row[1:] for row in said["swaps"]] == [
            ["llm", "checkpoint", "2.000", "", "", "deadline"],
            ["llm", "restore", "0.500", "1.0 GiB", "80 %", ""],
        ]
        ((text, whole, used),) = shown.tab.ask(BARS)
        assert (text, used / whole) == ("2.0 GiB of 8.0 GiB", pytest.approx(0.25, abs=0.01))
        assert shown.tab.ask(LINES) == [["restore", 37.5], ["failed", 150]]
        asyncio.run_coroutine_threadsafe(shown.client.ask("a"), shown.loop).result(30)
        shown.seen = Seen((), ())
        shown.told(f"{CELLS}.models[0][1]", "ready")
        shown.told(f"{CELLS}.jobs", [["no jobs"]])
        assert set(shown.tab.requests) == {f"{shown.url}/", f"{shown.url}/status"}
        assert shown.tab.complaints == []
    shown.told("document.querySelector('#trouble').innerText", "gcr serve does not answer; these are its last words")


def test_it_asks_for_the_token_and_keeps_it_for_the_tab(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    with shown.served(tmp_path, serve='token_file = "token"'):
        shown.tab.look(1280, "light")
        shown.tab.visit(f"{shown.url}/")
        shown.told("document.querySelector('#entry').hidden", False)
        shown.tab.ask(
            'document.querySelector("#token").value = "secret"; document.querySelector("#entry button").click()'
        )
        shown.told("document.querySelectorAll('#jobs tbody td').length", 6)
        assert shown.tab.ask("document.querySelector('#entry').hidden")
        assert "secret" not in json.dumps(shown.tab.ask("document.documentElement.outerHTML"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_any_screen(shown: Shown, tmp_path: Path, scheme: str) -> None:
    """No text is cut off or hard to read, and no screen scrolls sideways."""
    with shown.served(tmp_path):
        shown.client.server.status.note(not_out())
        for width in (320, 640, 1280):
            shown.tab.look(width, scheme)
            shown.tab.visit(f"{shown.url}/")
            shown.told("document.querySelectorAll('#swaps line').length", 1)
            assert shown.tab.ask("document.scrollingElement.scrollWidth") <= width
            assert shown.tab.ask(UNSEEN) == []
            below, *others = [browser.luminance(colour) for colour in shown.tab.ask(COLOURS)]
            cards, words = others[:4], others[4:]
            assert (below > 0.5) == (scheme == "light")
            assert min(browser.contrast(word, ground) for word in words for ground in (below, *cards)) >= 4.5
