"""`gcr top` on a terminal: live, across the end of a daemon, and the terminal as it was after Ctrl-C."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gcr.protocol.channel import Request

from .conftest import DEADLINE, Gcr, gcr_command
from .fake_daemon import JOBS, FakeDaemon, answering

SHOWN, HIDDEN = b"\x1b[?1049h", b"\x1b[?1049l"  # the other screen of a terminal
CURSOR, NO_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


class Terminal:
    """A terminal with `gcr top`. `said`: all that came."""

    def __init__(self) -> None:
        self._ours, theirs = os.openpty()
        command = gcr_command(["top", "--interval", "0.05"])
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self.said = b""

    def until(self, words: bytes, after: int = 0) -> int:
        """Reads until these words came. Returns the place after all that came."""
        end = time.monotonic() + DEADLINE
        while words not in self.said[after:]:
            assert time.monotonic() < end, (words, self.said[-2000:])
            if select.select([self._ours], [], [], 0.1)[0]:
                self.said += self._some()
        return len(self.said)

    def rest(self) -> bytes:
        """Returns what comes until it has ended."""
        self.process.wait(DEADLINE)
        while select.select([self._ours], [], [], 0)[0] and (some := self._some()):
            self.said += some
        return self.said

    def _some(self) -> bytes:
        try:
            return os.read(self._ours, 1 << 16)
        except OSError:  # no process has the other end any more
            return b""

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)
        os.close(self._ours)


@pytest.fixture
def terminal(daemon: FakeDaemon) -> Iterator[Terminal]:
    daemon.answers["devices"] = answering({"devices": []})
    made = Terminal()
    yield made
    made.close()


def hanging_up(_body: dict[str, Any], request: Request) -> dict[str, Any]:
    request.channel.close()
    return {}


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_goes_on_after_a_daemon_and_leaves_the_terminal_as_it_was(
    terminal: Terminal, daemon: FakeDaemon, sent: int, code: int
) -> None:
    at = terminal.until(b"python serve.py")
    assert terminal.said.count(SHOWN) == 1 and HIDDEN not in terminal.said
    for trouble in (hanging_up, answering({"jobs": [], "awaited": [4711]})):
        daemon.answers["ps"] = trouble
        at = terminal.until(b"as it was: ", at)
        daemon.answers["ps"] = answering({"jobs": [{**JOBS[0], "command": ["again"]}]})
        at = terminal.until(b"again", at)
    terminal.process.send_signal(sent)
    said = terminal.rest()
    assert terminal.process.returncode == code
    assert said.count(SHOWN) == said.count(HIDDEN) == 1
    assert said.rindex(CURSOR) > said.rindex(NO_CURSOR)
    assert b"Traceback" not in said


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "x"])
def test_an_interval_that_is_none_is_refused(gcr: Gcr, interval: str) -> None:
    ran = gcr("--json", "top", "--interval", interval)
    assert (ran.code, ran.json["error"]["code"]) == (2, "usage")
