"""The daemon's log has one INFO line a transaction: job, bytes, seconds, caller; refusals and failures too."""

import ast
import logging
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from reported import checkpointed, restored

from gcr.api.listings import JobList
from gcr.api.reports import SwapReport
from gcr.daemon.ledger import Entry, asked_by
from gcr.errors import DeadlinePassed, GcrError, NoRoom
from gcr.protocol.seqpacket import PeerIdentity

ROOT = Path(__file__).parents[2]
OUT = checkpointed(job="llm", bytes=3 << 30, stop_s=0.69, wall_s=0.8, image="warm")
BACK = restored(job="bb", bytes=5, wall_s=0.4, moved={"GPU-1": "GPU-2"})


def test_a_transaction_is_one_line_with_job_bytes_seconds_and_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gcr.daemon")
    Entry("checkpoint", {"target": 77}, "uid 7, pid 8: gcr checkpoint 77", began=0.0).done(OUT)
    Entry("swap", {"out": "llm", "in": "bb"}, "me").done(SwapReport(out=OUT, back=BACK))
    Entry("ps", {}, "me").done(JobList(jobs=()))
    first, second, third = caplog.messages
    assert first.startswith("job llm: checkpoint done, suspended: 3221225472 bytes, ")
    assert first.endswith(" s, stopped 0.690 s, image warm; asked by uid 7, pid 8: gcr checkpoint 77")
    assert "0.800 s" in second
    assert third == "job bb: restore done, running: 5 bytes, 0.400 s, moved {'GPU-1': 'GPU-2'}; asked by me"


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
    caplog.set_level(logging.INFO, "gcr.daemon")
    Entry("restore", {"target": "bb"}, "uid 1, pid 2: x").failed(error)
    (line,) = caplog.messages
    assert line.startswith(how)
    assert line.endswith(" s; asked by uid 1, pid 2: x")


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
