"""Where pages of CRIU's are cut: by the addresses that they are at, and not by their place in the file."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagemaps import HEAD, PAGE, PARENT, PRESENT, WINDOW, Entry, dumped, pagemap

from gcr.criu.pages import chunk_sizes


@pytest.mark.parametrize(
    ("entries", "pages"),
    [
        ([(0, 40, PRESENT)], [16, 16, 8]),
        ([(15, 2, PRESENT)], [1, 1]),
        ([(3, 2, PRESENT), (9, 4, PRESENT)], [6]),  # a hole within a window
        ([(3, 2, PRESENT), (20, 1, PRESENT)], [2, 1]),
        ([(3, 2, PARENT), (20, 1, PRESENT | 2)], [1]),  # those of the first are in another file
        ([], []),
    ],
)
def test_each_window_of_addresses_is_a_chunk(tmp_path: Path, entries: list[Entry], pages: list[int]) -> None:
    assert chunk_sizes(dumped(tmp_path, entries), WINDOW) == {"pages-1.img": [count * PAGE for count in pages]}
    assert chunk_sizes(tmp_path, WINDOW, ["pages-2.img"])
    assert not chunk_sizes(tmp_path, WINDOW, ["pages-1.img"])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20), st.integers(0, 10))
def test_a_page_more_changes_the_chunk_of_its_window_alone(gaps: list[tuple[int, int]], more: int) -> None:
    """The oracle: the pages of each window, counted one by one."""
    first, entries, windows = 1000, list[Entry](), dict[int, int]()
    for gap, count in gaps:
        entries.append((first + gap + 1, count, PRESENT))
        for page in range(first + gap + 1, first + gap + 1 + count):
            windows[page // 16] = windows.get(page // 16, 0) + 1
        first += gap + 1 + count
    with tempfile.TemporaryDirectory() as folder:
        (found,) = chunk_sizes(dumped(Path(folder), entries), WINDOW).values()
    assert found == [count * PAGE for count in windows.values()]


@pytest.mark.parametrize(
    "left", [b"", b"\0" * 100, HEAD, pagemap([(0, 4, PRESENT)])[:-1], pagemap([(0, 4, PRESENT)]) + b"\xff\xff\0\0"]
)
def test_a_pagemap_that_cannot_be_read_is_no_failure(tmp_path: Path, left: bytes) -> None:
    dumped(tmp_path, [(0, 4, PRESENT)])
    (tmp_path / "pagemap-7.img").write_bytes(left)
    assert chunk_sizes(tmp_path, WINDOW) == chunk_sizes(tmp_path, WINDOW, ["pages-2.img"]) == {}


def test_a_pagemap_of_other_bytes_is_not_followed(tmp_path: Path) -> None:
    assert chunk_sizes(dumped(tmp_path, [(0, 4, PRESENT)], pages=5), WINDOW) == {}
    (tmp_path / "pages-1.img").unlink()
    assert chunk_sizes(tmp_path, WINDOW) == {}
