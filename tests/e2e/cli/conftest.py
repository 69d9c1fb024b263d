"""Each test has its own runtime, state and temporary directories, and a fake daemon when it asks for one."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import warm

from gcr import schemas
from gcr.image.store.store import Store
from gcr.runtime import runtime_dir, socket_path

from .fake_daemon import CHECKPOINT, JOBS, RESTORE, FakeDaemon, answering

DEADLINE = 60.0
MIB = 1 << 20


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout, held against the schema of its command, or of failures."""
        document: dict[str, Any] = json.loads(self.out)
        several = "jobs" in document and document["command"] in ("checkpoint", "restore")
        name = schemas.SEVERAL if several else document["command"] if document["ok"] else schemas.ERROR
        jsonschema.Draft202012Validator(schemas.load(name)).validate(document)
        if not document["ok"] and not several:
            assert document["error"]["exit"] == self.code
        return document


Gcr = Callable[..., Ran]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        folder = tmp_path / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))
    kept = ("GCR_NATIVE_DIR", "GCR_PLUGINS")  # where this tree's own parts are
    for name in [name for name in os.environ if name.startswith("GCR_") and name not in kept]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("GCR_STORE", str(home / "store"))
    return Store(home / "store")


def gcr_command(arguments: Sequence[str]) -> list[str]:
    """Returns the command for tests that start gcr themselves: terminals, signals, closed streams, limits."""
    return [sys.executable, "-m", "gcr", *arguments]


def buffered() -> dict[str, str]:
    """An environment with the buffer that stdout has by default: what is in it may fail again at the very end."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def gcr() -> Gcr:
    """Run `gcr` as a user would, its output through pipes, without the start of an interpreter (tests/e2e/warm.py)."""

    def run(*arguments: str, **env: str) -> Ran:
        done = warm.run("gcr", *arguments, env={**os.environ, **env}, timeout=DEADLINE)
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    runtime_dir()
    with FakeDaemon(socket_path()) as fake:
        fake.answers.update(
            checkpoint=answering(CHECKPOINT),
            restore=answering(RESTORE),
            ps=answering({"jobs": JOBS}),
            events=answering({"daemon": "d", "last": 0, "events": []}),
            recover=answering({"jobs": [{"job": "llm", "was": "frozen", "now": "running", "action": "rolled back"}]}),
        )
        yield fake
