"""Commands of gcr that a step of a migration has started before it wants them."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gcr.errors import DeadlinePassed, UsageError
from gcr.image.store.store import Store
from gcr.migration_helper import commands

READY = [sys.executable, "-m", "gcr.cli.ready"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The processes that are started."""
    found, start = list["subprocess.Popen[bytes]"](), commands._started

    def noted(words: Sequence[str], stdin: int) -> "subprocess.Popen[bytes]":
        found.append(start(words, stdin))
        return found[-1]

    monkeypatch.setattr(commands, "_started", noted)
    return found


def test_a_command_that_is_ready_is_carried_out_once_it_is_called(started: list["subprocess.Popen[bytes]"]) -> None:
    with commands.ready("backends", imports=("gcr.cli.commands.backends",)) as go:
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(0.2)
        assert any(each["name"] == "nvidia" for each in go(60.0)["backends"])
    assert started[0].returncode == 0
    assert not commands._running


def test_its_error_is_raised(started: list["subprocess.Popen[bytes]"]) -> None:
    with commands.ready("restore", "--image", "/", imports=()) as go, pytest.raises(UsageError):
        go(60.0)
    assert len(started) == 1


def test_one_that_is_not_called_ends_and_has_done_nothing(started: list["subprocess.Popen[bytes]"]) -> None:
    with pytest.raises(KeyError), commands.ready("backends", imports=()):
        raise KeyError
    assert started[0].poll() is not None
    assert started[0].returncode != 0
    assert not commands._running


def test_one_that_takes_too_long_is_ended(started: list["subprocess.Popen[bytes]"]) -> None:
    with commands.ready("backends", imports=()) as go, pytest.raises(DeadlinePassed):
        go(0.0)
    assert started[0].poll() is not None


def test_it_ends_where_the_process_that_started_it_has_ended() -> None:
    done = subprocess.run(
        [*READY, "json", "--", "backends"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_it_reads_no_more_input_than_the_word() -> None:
    said = subprocess.run([*READY, "--", "--json", "backends"], input=b"go\n--help", capture_output=True, check=True)
    assert said.stdout.startswith(b"{")


@pytest.mark.parametrize("exists", [False, True])
def test_a_restore_begins_at_once_and_does_nothing_before_the_word(tmp_path: Path, exists: bool) -> None:
    """It ends where no word comes, and looks for the image after the word alone."""
    if exists:
        Store(tmp_path / "store")
    words = ["--", "--json", "restore", "--image", "one", "--suspended", "llm", "--when-told"]
    env = {**os.environ, "GCR_STORE": str(tmp_path / "store")}
    codes = list[tuple[int, str]]()
    for word in (b"", b"go\n"):
        done = subprocess.run([*READY, *words], input=word, env=env, capture_output=True, check=False)
        codes.append((done.returncode, json.loads(done.stdout)["error"]["code"]))
    assert codes == [(130, "interrupted"), (3, "no_such_image")]
