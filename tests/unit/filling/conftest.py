"""A target on which a job of one process is to come."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from filled import Target

from gcr.daemon.commands import filling
from gcr.hashing import CHUNK_BYTES


@pytest.fixture(autouse=True)
def arriving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "is_arriving", lambda *_: True)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path / "store")
    made.job.put(next(made.ids), random.Random(1).randbytes(5 * CHUNK_BYTES + 100))
    yield made
    made.close()
