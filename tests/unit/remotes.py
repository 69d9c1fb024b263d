"""Stores elsewhere, for tests: an image is pushed into a folder, and pulled from it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from imaging import bytes_of

from gcr.hashing.chunks import CHUNK_BYTES
from gcr.image.chunks.chunk import name_of
from gcr.image.crypto.cipher import Cipher
from gcr.image.crypto.ciphers import cipher_of
from gcr.image.files.names import PULLED
from gcr.image.remote.pull import pull
from gcr.image.remote.push import Moved, push
from gcr.image.remote.remote import Remote
from gcr.image.remote.transfer import Transfer
from gcr.image.store.mark import MARK
from gcr.image.store.store import Store
from gcr.imageerrors import StoreUnusable

OTHER = cipher_of(bytes(32))


COMMON, OWN = bytes_of(1, 5 * CHUNK_BYTES), bytes_of(2, 3 * CHUNK_BYTES + 100)


def pushed(store: Store, away: Path, name: str = "warm") -> Moved:
    return push(store, name, away.as_uri(), Transfer("push"))


def pulled(store: Store, away: Path, name: str = "warm") -> Moved:
    return pull(store.path, name, away.as_uri(), Transfer("pull"), store.cipher)


def contents(folder: Path) -> dict[str, bytes]:
    """But for what is not the same in all stores that have an image."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", MARK))
    paths = (path for path in files if path.suffix != PULLED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rewritten(path: Path, cipher: Cipher, change: Callable[[dict[str, object]], object]) -> None:
    """Rewrites a manifest, with a right digest, as an attacker with the key can."""
    file = f"images/{path.name}"
    document = json.loads(cipher.decrypt(file, path.read_bytes(), path))
    change(document["image"])
    document["digest"] = name_of(json.dumps(document["image"], sort_keys=True).encode()).hex()
    path.write_bytes(cipher.encrypt(file, json.dumps(document).encode()))


def interrupted_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many parts come, one after the other; then nothing more does."""
    real, came = Remote.part, []

    def part(self: Remote, path: str, at: int, size: int) -> memoryview:
        if len(came) == count:
            raise StoreUnusable("the line is dead")
        came.append(at)
        return real(self, path, at, size)

    monkeypatch.setattr(Remote, "part", part)
    monkeypatch.setattr(Transfer, "at_once", lambda *_: 1)
