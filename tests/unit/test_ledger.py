"""The daemon's log has one INFO line a transaction: job, bytes, seconds, caller; refusals and failures too."""

import ast
import logging
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from reported import checkpointed, restored

from gcr.api.requests import EventsRequest
from gcr.daemon.commands.asked import Asked
from gcr.daemon.commands.telling import Story, telling
from gcr.daemon.history import History
from gcr.daemon.jobs import Job, Jobs
from gcr.daemon.ledger import Entry, asked_by
from gcr.daemon.permission import OURSELVES
from gcr.engine.node import Course, World
from gcr.errors import DeadlinePassed, GcrError, NoRoom
from gcr.protocol.seqpacket import PeerIdentity

ROOT = Path(__file__).parents[2]
OUT = checkpointed(job="llm", bytes=3 << 30, stop_s=0.69, image="warm", phases_s={"stop": 0.1})
BACK = restored(job="bb", bytes=5, moved={"GPU-1": "GPU-2"})


def story(job: str, kind: str, by: str = "me") -> Story:
    return Story(History(), Job(job, "t", World("nvidia")), Course(kind, 0xABC, 60.0, began=0.0), by)


def told(history: History) -> list[dict[str, Any]]:
    """Returns the events, without that of the daemon's start."""
    batch = history.asked(EventsRequest(), OURSELVES, threading.Event())
    return [event.to_json() for event in batch.events[1:]]


def test_a_transaction_is_one_line_with_job_bytes_seconds_and_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gcr.daemon")
    out, back = story("llm", "checkpoint", "uid 7, pid 8: gcr checkpoint 77"), story("bb", "restore")
    out.begun()
    assert out.done(OUT) is OUT
    back.begun()
    assert back.done(BACK) is BACK
    first, second = caplog.messages
    assert first.startswith("job llm: checkpoint done, suspended: 3221225472 bytes, ")
    assert first.endswith(" s, stopped 0.690 s, image warm; asked by uid 7, pid 8: gcr checkpoint 77")
    assert second.startswith("job bb: restore done, running: 5 bytes, ")
    assert second.endswith(" s, moved {'GPU-1': 'GPU-2'}; asked by me")


def test_the_events_of_a_command_have_its_transaction_and_what_the_report_says() -> None:
    out = story("llm", "checkpoint")
    out.begun()
    out.done(OUT)
    begun, done = told(out.history)
    assert (begun["event"], begun["transaction"], begun["image"]) == ("checkpoint_begun", "abc", None)
    assert (done["event"], done["transaction"], done["by"]) == ("checkpoint_done", "abc", "me")
    assert (done["bytes"], done["stop_s"], done["phases_s"]) == (3 << 30, 0.69, {"stop": 0.1})
    assert done["took_s"] > 0
    assert (begun["seq"], done["seq"]) == (2, 3)


@pytest.mark.parametrize(
    ("error", "how"),
    [
        (
            NoRoom("1 GiB short", missing=1, state="suspended"),
            "job bb: restore refused, suspended: no_room: 1 GiB short",
        ),
        (DeadlinePassed("not done within 5 s"), "job bb: restore failed: deadline_passed: not done within 5 s"),
    ],
)
def test_what_was_not_done_is_one_line_as_well(caplog: pytest.LogCaptureFixture, error: GcrError, how: str) -> None:
    """Also where the command has told of it, and the server is about to tell of the request."""
    caplog.set_level(logging.INFO, "gcr.daemon")
    entry = Entry("restore", {"target": "bb"}, "uid 1, pid 2: x")
    entry.failed(error)
    story("bb", "restore", entry.who).failed(error)
    entry.failed(error)
    for line in caplog.messages:
        assert line.startswith(how)
        assert line.endswith(" s; asked by uid 1, pid 2: x")
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("error", "code", "exit"), [(NoRoom("short", missing=1), "no_room", 3), (KeyError("a bug"), "internal", 1)]
)
def test_a_command_that_fails_is_an_event_with_the_state_of_its_job(error: Exception, code: str, exit: int) -> None:
    node: Any = SimpleNamespace(jobs=Jobs())
    job, asked = Job("llm", "t", World("nvidia")), Asked(lambda _event: None, threading.Event(), who="me")
    with pytest.raises(type(error)) as caught, telling(node, job, Course("restore", 1, 60.0), asked, None):
        raise error
    assert caught.value is error
    (failed,) = told(node.jobs.history)
    assert (failed["event"], failed["code"], failed["exit"], failed["by"]) == ("restore_failed", code, exit, "me")
    assert failed["state"] == ("running" if isinstance(error, GcrError) else None)


def test_the_caller_is_named_by_its_command_on_one_line() -> None:
    me = asked_by(PeerIdentity(os.getpid(), os.getuid(), os.getgid()))
    assert me.startswith(f"uid {os.getuid()}, pid {os.getpid()}: ")
    assert Path(sys.executable).name in me
    assert "\n" not in me
    assert asked_by(PeerIdentity(4194304 + 3, 5, 5)) == "uid 5, pid 4194307: a process that has left"


def test_every_line_about_a_process_carries_its_job() -> None:
    paths = [path for part in ("daemon", "engine", "peers", "job") for path in (ROOT / "core/gcr" / part).rglob("*.py")]
    texts = [
        (path.name, node.lineno, str(node.args[0].value))
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("info", "warning", "error", "exception")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    assert len(texts) > 20
    about = ("process %d", "image %s")
    assert [text for text in texts if any(word in text[2] for word in about) and "job %s" not in text[2]] == []
