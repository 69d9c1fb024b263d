"""A file names a program while it runs: also once the program was killed, and never another one with its pid."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from gcr import background
from gcr.background import Note, Runs

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from gcr.background import Note, taken

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if sys.argv[2] == "ends" else None)
with taken(Path(sys.argv[1])) as place:
    place.write(Note(os.getpid(), "tls://[::1]:7443", "ab"))
    print("ready", flush=True)
    while True:
        time.sleep(60)
"""


@contextmanager
def program(path: Path, on_term: str = "ends") -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM, str(path), on_term]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_program_is_found_while_it_runs_and_ended(tmp_path: Path) -> None:
    path = tmp_path / "note"
    assert (background.found(path), background.end(path, 0)) == (None, False)
    with program(path) as process:
        assert background.found(path) == Note(process.pid, "tls://[::1]:7443", "ab")
        with pytest.raises(Runs) as refused, background.taken(path):
            pass
        assert refused.value.note == background.found(path)
        assert background.end(path, 30)
        assert process.wait(30) == 0
    assert (background.found(path), path.read_bytes()) == (None, b"")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_look_at_the_file_is_not_taken_for_a_program(tmp_path: Path) -> None:
    """A look locks the file for an instant."""
    path = tmp_path / "note"
    path.touch()
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    Timer(0.02, os.close, (looking,)).start()
    with background.taken(path):
        pass


def test_a_note_that_was_left_behind_names_no_program(tmp_path: Path) -> None:
    """The pid in it may be another program's by now: here it is this one's."""
    path = tmp_path / "note"
    with program(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    path.write_text(path.read_text().replace(str(process.pid), str(os.getpid())))
    assert background.found(path) is None
    assert background.end(path, 0) is False
    with background.taken(path) as place:
        assert background.found(path) is None, "it does not listen yet"
        place.write(Note(7, "tcp://a:1"))
        assert background.found(path) == Note(7, "tcp://a:1")


def test_a_program_that_does_not_end_is_told_of(tmp_path: Path) -> None:
    with program(tmp_path / "note", "stays") as process:
        with pytest.raises(TimeoutError, match="has not ended after"):
            background.end(tmp_path / "note", 0.1)
        assert process.poll() is None


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    (tmp_path / "note").symlink_to(tmp_path / "file")
    with pytest.raises(OSError), background.taken(tmp_path / "note"):
        pass
    assert (tmp_path / "file").read_text() == "{}"
