"""Stores of images, plain and encrypted."""

from pathlib import Path

import pytest
from imaging import CIPHERS

from gcr.image.store.store import Store


@pytest.fixture(params=CIPHERS)
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return Store(tmp_path / "store", CIPHERS[request.param])


@pytest.fixture
def plain(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")
