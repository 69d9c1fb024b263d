"""`gcr run -d`, the half that stays."""

import os
import select
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from gcr.errors import CannotStart, Interrupted, NameTaken
from gcr.protocol.operations.daemon import Finished
from gcr.supervisor import process
from gcr.supervisor.spec import JobSpec
from gcr.testing.machine import until

SPEC = JobSpec(("true",), None, detach=True)


def test_the_program_stays_supervised_where_its_starter_has_left(monkeypatch):
    """The starter has left by Ctrl-C, say: the program may run by then."""

    def run(_spec, started, may_start):
        may_start()
        started(type("Started", (), {"name": "llm", "diary": type("Diary", (), {"log": "/logs/llm"})}))
        return process.Outcome(7, "llm")

    monkeypatch.setattr(process, "_run", run)
    (answer, tell), (stopped, stop) = os.pipe(), os.pipe()
    os.close(answer)
    os.close(stop)
    assert process._run_detached(SPEC, tell, stopped) == 7


def test_the_daemon_hears_that_there_is_no_program_before_its_line_is_closed(monkeypatch):
    heard = []
    monkeypatch.setattr(process.Supervisor, "register", lambda _self: None)
    monkeypatch.setattr(process.DaemonLink, "is_open", True)
    monkeypatch.setattr(process.DaemonLink, "tell", lambda _self, told: heard.append(told))
    monkeypatch.setattr(process.DaemonLink, "close", lambda _self: heard.append("closed"))
    nothing = JobSpec(("/nonexistent",), None, environment={})
    with pytest.raises(CannotStart):
        process._run(nothing, started=heard.append)
    assert heard == [Finished(process.FAILED_BEFORE_START), "closed"]


@pytest.mark.parametrize("had_started", [True, False])
def test_the_starter_says_after_a_ctrl_c_whether_the_job_runs(monkeypatch, had_started):
    def run(_spec, started, may_start):
        if not had_started:
            may_start()
        started(type("Started", (), {"name": "llm", "diary": type("Diary", (), {"log": "/logs/llm"})}))
        return process.Outcome(7, "llm")

    monkeypatch.setattr(process, "_run", run)
    (answer, tell), (stopped, stop) = os.pipe(), os.pipe()

    before = signal.getsignal(signal.SIGINT)

    def press():
        until(lambda: signal.getsignal(signal.SIGINT) is not before, 10, "the starter waits for Ctrl-C, too")
        os.kill(os.getpid(), signal.SIGINT)
        select.select([stopped], [], [], 10)  # it has told the half that stays
        process._run_detached(SPEC, tell, stopped)

    pressing = threading.Thread(target=press)
    pressing.start()
    with os.fdopen(answer, "rb") as stream, pytest.raises(Interrupted) as told:
        process._await_detached(stream, stop)
    pressing.join(10)
    assert ("llm had started: it runs" in told.value.message) == had_started
    assert ("was not started" in told.value.message) != had_started


@pytest.mark.parametrize("word", [b"g", b"s", b""])
def test_a_program_that_its_starter_prepares_starts_on_its_word_alone(monkeypatch, word):
    """An empty word: the starter was killed."""
    prepared = []

    def run(_spec, started, may_start):
        may_start()
        started(type("Started", (), {"name": "llm", "diary": type("Diary", (), {"log": None})}))
        return process.Outcome(7, "llm")

    monkeypatch.setattr(process, "_run", run)
    (answer, tell), (stopped, stop) = os.pipe(), os.pipe()
    os.write(stop, word)
    os.close(stop)
    revival = SimpleNamespace(prepare=prepared.append)
    code = process._run_detached(replace(SPEC, revival=revival), tell, stopped)
    said = os.read(answer, 1 << 16)
    os.close(answer)
    assert (code, b"not started" in said) == ((7, False) if word == b"g" else (process.FAILED_BEFORE_START, True))
    assert not prepared  # that is the starter's to do


@pytest.mark.parametrize("error", [OSError("a disk"), KeyboardInterrupt()])
def test_a_starter_that_fails_to_prepare_says_so_and_waits_for_the_other_half(error):
    (answer, tell), (stopped, stop) = os.pipe(), os.pipe()
    words = []

    def other_half():
        words.append(os.read(stopped, 1))
        time.sleep(0.1)
        words.append(b"ended")
        os.close(tell)

    def prepare():
        raise error

    half = threading.Thread(target=other_half)
    half.start()
    with os.fdopen(answer, "rb") as stream, pytest.raises(type(error)):
        process._prepared(prepare, stream, stop, ())
    assert words == [b"s", b"ended"]
    half.join()
    os.close(stopped)


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_a_job_that_comes_back_is_registered_while_criu_gets_ready(monkeypatch, fills, taken):
    """Where the registration begins to fill the devices it comes first. Its error is that of the return."""
    happened = []

    def bring_back(_log, _tell, may_begin, meanwhile):
        happened.append("criu")
        meanwhile()
        may_begin()
        happened.append("made")
        raise OSError("it ends here")

    def register(_self):
        happened.append("registered")
        if taken:
            raise NameTaken("it runs")

    monkeypatch.setattr(process.Supervisor, "register", register)
    monkeypatch.setattr(process.Supervisor, "_await_start", lambda _self, may_start: may_start())
    monkeypatch.setattr(process.Diary, "leave_terminal", lambda _self, job: happened.append(job))
    back = SimpleNamespace(stopped=SimpleNamespace(token="1"), fills=fills, get_ready=int, bring_back=bring_back)
    with pytest.raises(NameTaken if taken else CannotStart):
        process._run(replace(SPEC, name="llm", revival=back), happened.append, lambda: happened.append("prepared"))
    first = ["registered", "llm", "criu"] if fills else ["llm", "criu", "registered"]
    expected = [*first, "prepared", "made"]
    assert happened == (expected[: expected.index("registered") + 1] if taken else expected)
