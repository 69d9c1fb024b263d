"""A pack, and what fetches its chunks and notes damaged packs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fetched import BUFFERS, SIZE, packed

from gcr.image.pack.reader import PackReader
from gcr.image.read.fetching import Fetcher


@pytest.fixture
def pack(tmp_path: Path) -> PackReader:
    return packed(tmp_path, 1)


@pytest.fixture
def damaged() -> list[PackReader]:
    return []


@pytest.fixture
def fetcher(damaged: list[PackReader]) -> Iterator[Fetcher]:
    with Fetcher(3, SIZE, damaged.append) as made:
        yield made
        assert made._free.qsize() == BUFFERS, "a buffer is lost, or is there twice"
        assert len({id(made._free.get()) for _ in range(BUFFERS)}) == BUFFERS
