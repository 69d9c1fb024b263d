"""Stores here and elsewhere, plain and encrypted; a folder that is asked as a bucket is."""

from pathlib import Path

import pytest
from imaging import CIPHERS

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.crypto.cipher import Cipher
from gcr.image.remote.folder import Folder
from gcr.image.remote.remote import Remote
from gcr.image.store.store import Store


@pytest.fixture(params=CIPHERS)
def cipher(request: pytest.FixtureRequest) -> Cipher:
    return CIPHERS[request.param]


@pytest.fixture
def store(tmp_path: Path, cipher: Cipher) -> Store:
    return Store(tmp_path / "store", cipher)


@pytest.fixture
def other(tmp_path: Path, cipher: Cipher) -> Store:
    """Returns the store to which images are pulled."""
    return Store(tmp_path / "other", cipher)


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Returns the folder of the remote; it does not exist yet."""
    return tmp_path / "far away"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for each chunk."""
    for module in ("pull", "push"):
        monkeypatch.setattr(f"gcr.image.remote.{module}.PART", CHUNK_BYTES)


@pytest.fixture
def as_bucket(away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the folder asked for objects, as a bucket is; no writer locks it."""
    away.mkdir()
    for module in ("pull", "push"):
        monkeypatch.setattr(f"gcr.image.remote.{module}.remote_at", Remote)


@pytest.fixture(params=[Folder, Remote], ids=["folder", "bucket"])
def kind(request: pytest.FixtureRequest) -> type[Remote]:
    """Returns the kind of the remote to which an image is pushed."""
    if request.param is Remote:
        request.getfixturevalue("as_bucket")
    found: type[Remote] = request.param
    return found
