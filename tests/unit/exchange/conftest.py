"""Stores, plain and encrypted, of a source and of a node that pulls; small pieces."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from imaging import CIPHERS

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.crypto.cipher import Cipher
from gcr.image.store.store import Store


@pytest.fixture(params=CIPHERS)
def cipher(request: pytest.FixtureRequest) -> Cipher:
    return CIPHERS[request.param]


@pytest.fixture
def store(tmp_path: Path, cipher: Cipher) -> Store:
    return Store(tmp_path / "store", cipher)


@pytest.fixture
def other(tmp_path: Path, cipher: Cipher) -> Store:
    return Store(tmp_path / "other", cipher)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece for each chunk."""
    monkeypatch.setattr("gcr.image.exchange.coming.LEAST_PIECE", CHUNK_BYTES)
