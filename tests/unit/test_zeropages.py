"""Pages of zeros that CRIU need not restore: only those that read as zeros without it are left out."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from imaging import folder_of, imaged
from pagemaps import OF_A_FILE, PAGE, PRESENT, PRIVATE, WINDOW, Entry, entries_of, memory, pagemap

from gcr.cli import bringing
from gcr.cli.bringing import bring
from gcr.criu import aside, saving
from gcr.criu.pages import chunk_sizes
from gcr.criu.saving import Wishes
from gcr.image.read.reader import ImageReader
from gcr.image.store.store import Store

CRIU = Path(os.environ.get("GCR_CRIU") or Path(__file__).parents[2] / "build/criu/criu")
SECONDS = 30
HOLDER = """
import ctypes, hashlib, mmap, sys
file = open(sys.argv[1], "rb")
private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
private[4096 : 1 << 20] = bytes((1 << 20) - 4096)      # the file has other bytes there
zeros = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
zeros[:] = bytes(8 << 20)
zeros[5 << 20] = 7
shared = mmap.mmap(-1, 2 << 20)
shared[:] = bytes(2 << 20)
print("ready", flush=True)
for line in sys.stdin:
    print(hashlib.sha256(private[:] + zeros[:] + shared[:]).hexdigest(), flush=True)
"""

Run = tuple[int, int, bool, list[int]]  # pages before it that are not there, and in it; private; the byte of each page


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    found = []
    for _ in range(draw(st.integers(0, 6))):
        count = draw(st.integers(1, 60))
        ends = draw(st.lists(st.integers(0, count), max_size=4))
        fill = [int(sum(page >= end for end in ends) % 2) for page in range(count)]  # stretches of zeros and others
        found.append((draw(st.integers(0, 20)), count, draw(st.booleans()), fill))
    return found


def laid(found: Sequence[Run]) -> tuple[list[Entry], list[Entry], dict[int, int]]:
    """Returns the entries of a pagemap, the areas of the memory, and the byte of each page."""
    first, entries, areas, pages = 1000, list[Entry](), list[Entry](), dict[int, int]()
    for gap, count, private, fill in found:
        first += gap
        entries.append((first, count, PRESENT))
        areas.append((first, count, PRIVATE if private else OF_A_FILE))
        pages.update({first + number: byte for number, byte in enumerate(fill)})
        first += count
    return entries, areas, pages


def brought(
    there: Path, entries: Sequence[Entry], areas: Sequence[Entry], pages: Mapping[int, int], *, of_criu_4_2: bool = True
) -> dict[int, int]:
    """Writes the files to an image and brings them back. Returns the byte of each page that they have then."""
    (there / "in").mkdir()
    (there / "in/pagemap-7.img").write_bytes(pagemap(entries, of_criu_4_2=of_criu_4_2))
    (there / "in/mm-7.img").write_bytes(memory(areas))
    (there / "in/pages-1.img").write_bytes(b"".join(bytes([byte]) * PAGE for byte in pages.values()))
    imaged(Store(there / "store"), "one", there / "in", sizes=chunk_sizes(there / "in", WINDOW))
    (there / "out").mkdir()
    with ImageReader(Store(there / "store"), "one") as reader:
        bring(reader, there / "out")
    there = there / "out"
    left = [
        first + number
        for first, count, flags in entries_of((there / "pagemap-7.img").read_bytes())
        for number in range(count)
        if flags == PRESENT
    ]
    text = (there / "pages-1.img").read_bytes()
    assert len(text) == PAGE * len(left)
    found = {}
    for number, page in enumerate(left):
        body = text[number * PAGE : (number + 1) * PAGE]
        assert body == body[:1] * PAGE
        found[page] = body[0]
    return found


@given(runs(), st.booleans())
@settings(max_examples=60)
def test_memory_reads_as_before(drawn: list[Run], of_criu_4_2: bool) -> None:
    """The oracle: a page that is left out is of zeros, in private memory; and a window of such pages is left out."""
    entries, areas, pages = laid(drawn)
    with tempfile.TemporaryDirectory() as folder:
        found = brought(Path(folder), entries, areas, pages, of_criu_4_2=of_criu_4_2)
    private = {first + number for first, count, status in areas if status == PRIVATE for number in range(count)}
    assert {page: byte for page, byte in pages.items() if page in found} == found
    assert all(page in private and not pages[page] for page in pages.keys() - found.keys())
    windows = {page // 16 for page in pages}
    for window in windows:
        there = [page for page in pages if page // 16 == window]
        if all(page in private and not pages[page] for page in there):
            assert not any(page in found for page in there)


@pytest.mark.parametrize("mm", [b"", b"x" * 20, None], ids=["empty", "nonsense", "missing"])
def test_memory_that_is_not_understood_comes_back_whole(
    tmp_path: Path, mm: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, areas, pages = laid([(0, 32, True, [0] * 32)])
    monkeypatch.setattr(sys.modules[__name__], "memory", lambda _areas: mm or b"")
    assert brought(tmp_path, entries, areas, pages) == pages


def test_where_memory_is_short_criu_restores_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"7" * (MIB := 1 << 20) * 2
    files = {"pagemap-7.img": pagemap([(1000, 512, PRESENT)]), "mm-7.img": memory([(1000, 512, PRIVATE)])}
    there = folder_of(tmp_path / "in", {**files, "pages-1.img": whole})
    imaged(Store(tmp_path / "store"), "one", there, sizes=chunk_sizes(there, WINDOW))
    for room, keeps in ((4 * MIB - 1, False), (4 * MIB, True)):
        monkeypatch.setattr(bringing, "available_host_bytes", lambda room=room: room)
        (there := tmp_path / f"{room}").mkdir()
        with ImageReader(Store(tmp_path / "store"), "one") as reader:
            kept = bring(reader, there)
        assert [bytes(each.memory) for each in kept] == ([whole] if keeps else [])
        assert (there / "pages-1.img").read_bytes() == (b"" if keeps else whole)


def said(lines: int, answers: Path, count: int) -> str:
    """Asks, and returns the last of so many lines."""
    os.write(lines, b"?\n")
    end = time.monotonic() + SECONDS
    while len(found := answers.read_text().splitlines()) < count:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[-1]


def test_criu_restores_what_is_left(tmp_path: Path) -> None:
    if not CRIU.exists() or "gVisor" in Path("/proc/version").read_text() or os.geteuid():
        pytest.skip("CRIU was not fetched to build/criu, or does not work here")
    (tmp_path / "file").write_bytes(os.urandom(2 << 20))
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "lines")
    lines = os.open(tmp_path / "lines", os.O_RDWR)
    process = holder_of(tmp_path)
    pid = process.pid
    before = said(lines, tmp_path / "answers", 2)
    saving.dump(CRIU, pid, tmp_path / "in", Wishes(), SECONDS, lambda _ended: None)
    process.wait()
    imaged(Store(tmp_path / "store"), "one", tmp_path / "in", sizes=chunk_sizes(tmp_path / "in", 1 << 18))
    with ImageReader(Store(tmp_path / "store"), "one") as reader:
        kept = bring(reader, tmp_path / "out")
    saved, left = (max(each.stat().st_size for each in (tmp_path / name).glob("*-*.img")) for name in ("in", "out"))
    assert max(left, sum(len(each.memory) for each in kept)) < saved - (6 << 20)
    saving.restore(CRIU, [pid], tmp_path / "out", Wishes(), SECONDS, lambda: aside.fill(kept))
    try:
        assert said(lines, tmp_path / "answers", 3) == before
    finally:
        os.close(lines)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def holder_of(folder: Path) -> "subprocess.Popen[bytes]":
    """Starts a process that holds memory of each kind, and answers lines."""
    words = [sys.executable, "-c", HOLDER, folder / "file"]
    null = subprocess.DEVNULL
    with (folder / "lines").open("r+b", buffering=0) as lines, (folder / "answers").open("ab") as answers:
        return subprocess.Popen(words, stdin=lines, stdout=answers, stderr=null, start_new_session=True)
