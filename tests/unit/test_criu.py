"""The conversation with CRIU: with programs that answer as no CRIU should, and with the real one where it is there."""

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gcr.criu import program
from gcr.criu.conversation import Conversation, conversation
from gcr.criu.messages import RequestType
from gcr.criu.program import Criu, find, look
from gcr.errors import CriuUnusable

FETCHED = Path(__file__).parents[2] / "build/criu/criu"
ANSWERING = """#!{python}
import socket, sys
sock = socket.socket(fileno=int(sys.argv[2]))
while asked := sock.recv(65536):
    {body}
"""
VERSION = "sock.send(bytes([8, 10, 16, 1, 82, 6, 8, {}, 16, {}, 32, {}]))"  # type, success, version: by hand
FEATURES = "sock.send(bytes([8, 9, 16, 1, 66, 4, 8, {}, 16, {}]))"
CHECKED = "sock.send(bytes([8, 3, 16, {}, 74, 4]) + b'kept')"

Making = Callable[[str], Path]


@pytest.fixture
def made(tmp_path: Path) -> Making:
    """Makes a program of this text."""

    def make(text: str) -> Path:
        path = tmp_path / "criu"
        path.write_text(text)
        path.chmod(stat.S_IRWXU)
        return path

    return make


def answering(version: tuple[int, int, int], features: tuple[int, int] = (0, 1), works: int = 1) -> str:
    """Returns a program that answers each request as CRIU does, in bytes that gcr's own messages do not make."""
    ways = {10: VERSION.format(*version), 9: FEATURES.format(*features), 3: CHECKED.format(works)}
    body = "\n    ".join(f"if asked[1] == {kind}: {send}" for kind, send in ways.items())
    return ANSWERING.format(python=sys.executable, body=body)


def test_a_criu_that_works_says_its_version_and_what_the_kernel_lacks(made: Making) -> None:
    found = look(made(answering((4, 2, 0))))
    assert found == Criu(found.program, (4, 2, 0), tracks=False, lazy=True)
    assert str(found) == f"4.2.0 at {found.program}, without dirty tracking"


def test_one_that_lacks_nothing_says_no_more(made: Making) -> None:
    found = look(made(answering((4, 1, 1), features=(1, 1))))
    assert str(found) == f"4.1.1 at {found.program}"


@pytest.mark.parametrize("version", [(3, 17, 1), (4, 0, 9)])
def test_an_older_one_is_refused(made: Making, version: tuple[int, int, int]) -> None:
    with pytest.raises(CriuUnusable, match=r"is of version {}\.{}\.{}".format(*version)) as refused:
        look(made(answering(version)))
    assert "4.1" in refused.value.hint


def test_one_that_cannot_work_here_is_refused_with_its_own_words(made: Making) -> None:
    with pytest.raises(CriuUnusable, match="cannot work here: kept"):
        look(made(answering((4, 1, 0), works=0)))


@pytest.mark.parametrize(
    "text, said",
    [
        ("#!/bin/sh\n", "ended before it answered VERSION$"),
        ("#!/bin/sh\necho first; echo no kernel >&2; exit 1\n", "ended before it answered VERSION: no kernel$"),
        ("#!/nowhere\n", "cannot be started: No such file or directory"),
        (
            ANSWERING.format(python=sys.executable, body="sock.send(b'no message')"),
            "did not answer VERSION: this is not a response",
        ),
        (ANSWERING.format(python=sys.executable, body="sock.send(bytes([8, 3, 16, 1]))"), "answered 3 and not VERSION"),
    ],
)
def test_one_that_does_not_answer_is_refused(made: Making, text: str, said: str) -> None:
    with pytest.raises(CriuUnusable, match=said):
        look(made(text))


def test_an_error_beside_a_request_is_raised_and_ends_it(made: Making) -> None:
    """It comes once CRIU was asked, and before it is told to go on."""
    asked = list[Conversation]()
    with pytest.raises(KeyError), conversation(made(ANSWERING.format(python=sys.executable, body="pass"))) as criu:
        asked.append(criu)
        criu.ask(RequestType.RESTORE, 20.0, pytest.fail, {}.popitem)
    assert asked[0].process.returncode == -signal.SIGKILL


def test_one_that_hangs_is_ended_with_its_children(
    made: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    for seconds in (1, 20):
        monkeypatch.setattr(program, "SECONDS", float(seconds))
        with pytest.raises(CriuUnusable, match=f"did not answer VERSION in {seconds} s"):
            look(made(f"#!/bin/sh\nsleep 100 & echo $! > {child}; wait\n"))
        if child.exists() and child.read_text():  # a busy machine may take a second to start it
            break
    has_ended(child)


def has_ended(pid: Path) -> None:
    child = Path(f"/proc/{int(pid.read_text())}/stat")
    end = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_that_dies_and_leaves_a_stopped_child_is_not_waited_for(made: Making, tmp_path: Path) -> None:
    """CRIU stops children to try the kernel. They have its socket and its output open."""
    began = time.monotonic()
    stopped = f"sh -c 'echo $$ > {tmp_path}/child; kill -STOP $$'"
    text = f"#!/bin/sh\n{stopped} & sleep 0.5; kill -KILL $$\n"
    with pytest.raises(CriuUnusable, match="CRIU ended before it answered VERSION"):
        look(made(text))
    assert time.monotonic() - began < program.SECONDS / 2
    has_ended(tmp_path / "child")


def test_the_setting_names_the_program_and_the_path_has_it_otherwise(
    made: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = made("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("GCR_CRIU", raising=False)
    assert find() == there
    monkeypatch.setenv("GCR_CRIU", "/nowhere/criu")
    with pytest.raises(CriuUnusable, match="no program /nowhere/criu"):
        find()


def test_the_real_one_works_here() -> None:
    if not FETCHED.exists():
        pytest.skip("CRIU was not fetched to build/criu")
    if "gVisor" in Path("/proc/version").read_text():
        pytest.skip("CRIU cannot work on gVisor")
    found = look(FETCHED)
    assert found.program == FETCHED and found.version >= program.OLDEST
