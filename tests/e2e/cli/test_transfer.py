"""`gcr checkpoint` and `gcr restore`, as a user and as a script see them."""

import inspect
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import gcr as library
from gcr.errorcodes import all_errors
from gcr.errors import (
    DeadlinePassed,
    DriverError,
    GcrError,
    Lost,
    NoDescriptors,
    NoRoom,
    NoSuchJob,
    UnsupportedState,
    WrongState,
)
from gcr.imageerrors import ImageFailed
from gcr.protocol.channel import Request

from .conftest import DEADLINE, Gcr, gcr_command
from .fake_daemon import CHECKPOINT, JOBS, RESTORE, SWAP, Answer, FakeDaemon, answering, raising


def test_checkpoint_says_how_long_it_took_and_how_to_come_back(gcr: Gcr, daemon: FakeDaemon) -> None:
    ran = gcr("checkpoint", "llm")
    assert (ran.code, ran.out) == (0, "llm: VRAM free in 0.71 s (stopped for 0.69 s). Back with: gcr restore llm\n")
    assert daemon.asked == [{"op": "checkpoint", "target": "llm"}]


def test_a_stopped_job_comes_back_by_its_image(gcr: Gcr, daemon: FakeDaemon, tmp_path: Path) -> None:
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "state": "stopped", "image": "night"})
    stop = "checkpoint", "llm", "--image", "night", "--stop"
    assert "Back with: gcr restore --image night\n" in gcr(*stop).out
    said = gcr(*stop, "--store", str(tmp_path)).out
    assert f"Back with: gcr restore --image night --store {tmp_path}\n" in said
    assert f"is being written: gcr images --store {tmp_path} lists it" in said


@pytest.mark.parametrize(("state", "rolled_back"), [("running", True), ("suspended", False)])
def test_an_image_that_was_not_written_says_whether_the_job_runs_on(
    gcr: Gcr, daemon: FakeDaemon, state: str, rolled_back: bool
) -> None:
    daemon.answers["checkpoint"] = raising(ImageFailed("image night was not written: no room", state=state))
    headline = "gcr: failed and rolled back\n  " if rolled_back else "gcr: "
    assert f"{headline}image night was not written: no room" in gcr("checkpoint", "llm", "--image", "night").err


def test_what_stays_on_the_device_is_said(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "vram_after_bytes": 512 << 20})
    assert gcr("checkpoint", "llm").out.startswith("llm: VRAM free, but for 512.0 MiB that the driver keeps, in 0.71 s")


def test_what_took_the_driver_long_is_said(gcr: Gcr, daemon: FakeDaemon) -> None:
    (row,) = CHECKPOINT["processes"]
    other = {**row, "uncovered": {"pool": 1 << 30, "managed": 64 << 20}, "pinned_host_bytes": 0, "contexts": 0}
    much = {**row, "contexts": 4, "pinned_host_bytes": 64 << 30}
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "processes": [much, other]})
    first, second = gcr("checkpoint", "llm").out.splitlines()
    assert first.startswith("llm: VRAM free in 0.71 s")
    assert second == (
        "  the driver took 0.40 s of that: it saved 4 contexts, unlocked 64.0 GiB of page-locked host memory, "
        "copied 1.1 GiB itself, which gcr cannot move (managed, pool)"
    )
    daemon.answers["checkpoint"] = answering({**CHECKPOINT, "processes": [much], "control_s": None})
    assert len(gcr("checkpoint", "llm").out.splitlines()) == 1  # --data-only


def test_checkpoint_json_is_the_daemons_report_and_our_wall_time(gcr: Gcr, daemon: FakeDaemon) -> None:
    document = gcr("checkpoint", "llm", "--json").json
    wall = document.pop("wall_s")
    assert document == {"schema": 1, "command": "checkpoint", "ok": True, **CHECKPOINT}
    assert 0 <= wall < DEADLINE


def test_restore(gcr: Gcr, daemon: FakeDaemon) -> None:
    assert gcr("restore", "llm").out == "llm runs again after 0.70 s (3.0 GiB)\n"
    assert daemon.asked == [{"op": "restore", "target": "llm"}]
    daemon.answers["restore"] = answering({**RESTORE, "cold": True})
    assert gcr("restore", "llm", "--json").json["cold"] is True


def test_restore_onto_other_devices(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["restore"] = answering({**RESTORE, "moved": {"GPU-1": "GPU-2"}})
    ran = gcr("restore", "llm", "--device", "0=1", "--device", "GPU-3=GPU-4")
    assert (ran.code, ran.out) == (0, "llm runs again after 0.70 s (3.0 GiB, GPU-1 ▸ GPU-2)\n")
    assert daemon.asked[0]["devices"] == {"0": "1", "GPU-3": "GPU-4"}


@pytest.mark.parametrize("words", [["0"], ["0="], ["=1"], [""], ["0=1", "0=2"]])
def test_moves_that_do_not_parse(gcr: Gcr, daemon: FakeDaemon, words: list[str]) -> None:
    flags = [flag for word in words for flag in ("--device", word)]
    assert gcr("restore", "llm", *flags).code == 2
    assert daemon.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "--timeout", "7", "--backend", "nvidia", "checkpoint", "4711", "--data-only"),
        ("checkpoint", "--json", "--timeout", "7", "--backend", "nvidia", "4711", "--data-only"),
        ("--timeout", "99", "--json", "checkpoint", "4711", "--timeout", "7", "--data-only", "--backend", "nvidia"),
    ],
)
def test_options_before_and_after_the_command_mean_the_same(gcr: Gcr, daemon: FakeDaemon, words: list[str]) -> None:
    gcr(*words).json  # noqa: B018  validates
    assert daemon.asked == [
        {"op": "checkpoint", "target": 4711, "data_only": True, "timeout": 7.0, "backend": "nvidia"}
    ]


def _plain(error: type[GcrError]) -> bool:
    """One that a command can end with (frames' own never leave the daemon) and that says nothing of its own."""
    return error.__module__ == "gcr.errors" and "missing" not in inspect.signature(error).parameters


ENDINGS = [error for error in all_errors().values() if _plain(error)]


@pytest.mark.parametrize("error", ENDINGS)
def test_every_error_keeps_its_code_and_exit_code_across_the_socket(
    gcr: Gcr, daemon: FakeDaemon, error: type[GcrError]
) -> None:
    daemon.answers["checkpoint"] = raising(error("what happened", state="running", hint="what to do"))
    ran = gcr("checkpoint", "llm", "--json")
    assert ran.json["error"] == {
        "code": error.code,
        "exit": error.exit,
        "message": "what happened",
        "state": "running",
        "hint": "what to do",
    }


def test_no_room_says_in_a_field_how_much_is_missing(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["checkpoint"] = raising(NoRoom("1 GiB short", missing=1 << 30, state="running"))
    assert gcr("checkpoint", "llm", "--json").json["error"]["missing"] == 1 << 30
    daemon.answers["checkpoint"] = raising(NoRoom("no descriptor left", missing=None))
    assert "missing" not in gcr("checkpoint", "llm", "--json").json["error"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (NoSuchJob("no job llm", hint="gcr ps"), 3, "gcr: refused, nothing was touched\n  no job llm\n  try: gcr ps\n"),
        (UnsupportedState("NCCL"), 3, "gcr: refused, nothing was touched\n  NCCL\n"),
        (NoRoom("1 GiB short", missing=1 << 30), 3, "gcr: refused, nothing was touched\n  1 GiB short\n"),
        (
            NoDescriptors("process 7: too many", hint="docs"),
            4,
            "gcr: failed and rolled back\n  process 7: too many\n  try: docs\n",
        ),
        (DriverError("cuMemMap: 1"), 4, "gcr: failed and rolled back\n  cuMemMap: 1\n"),
        (Lost("no VRAM"), 5, "gcr: the program cannot continue\n  no VRAM\n"),
    ],
)
def test_a_failure_says_first_whether_the_target_was_touched(
    gcr: Gcr, daemon: FakeDaemon, error: GcrError, code: int, text: str
) -> None:
    daemon.answers["checkpoint"] = raising(error)
    ran = gcr("checkpoint", "llm")
    assert (ran.code, ran.out, ran.err) == (code, "", text)


def _progressing(_body: dict[str, Any], request: Request) -> Mapping[str, Any]:
    request.progress({"job": "llm", "phase": "prepared", "message": "1,640 handles, still running"})
    for done in (1, 2, 3):
        request.progress(
            {"phase": "draining", "bytes": done << 30, "total_bytes": 4 << 30, "bytes_per_s": 54.1e9, "left_s": 0.2}
        )
    return CHECKPOINT


def test_piped_progress_is_plain_lines_on_stderr(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["checkpoint"] = _progressing
    lines = gcr("checkpoint", "llm").err.splitlines()
    assert lines[0] == "  prepared     1,640 handles, still running"
    assert lines[1].startswith("  draining     25 %   1.0 GiB   54.1 GB/s   0.2 s left")
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("no_color", [True, False])
def test_on_a_terminal_progress_is_drawn_on_stderr(daemon: FakeDaemon, no_color: bool) -> None:
    daemon.answers["checkpoint"] = _progressing
    master, slave = os.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **({"NO_COLOR": "1"} if no_color else {})}
    with subprocess.Popen(gcr_command(["checkpoint", "llm"]), env=env, stdout=subprocess.PIPE, stderr=slave) as child:
        os.close(slave)
        drawn = _read_all(master)
        assert child.stdout is not None
        assert child.stdout.read() == b"llm: VRAM free in 0.71 s (stopped for 0.69 s). Back with: gcr restore llm\n"
        assert child.wait(DEADLINE) == 0
    os.close(master)
    assert "prepared" in drawn
    assert "draining" in drawn
    assert "━" in drawn
    assert ("\x1b[3" in drawn) is not no_color


def _read_all(fd: int) -> str:
    chunks = []
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # EIO: the last writer has closed the terminal
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode()


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_hangs_up_waits_for_the_rollback_and_exits_130(daemon: FakeDaemon, as_json: bool) -> None:
    begun, rolled_back = threading.Event(), threading.Event()
    looked: list[str] = []

    def stuck(_body: dict[str, Any], _request: Request) -> Mapping[str, Any]:
        begun.set()
        assert daemon.hung_up.wait(DEADLINE)
        return {}

    def jobs(_body: dict[str, Any], _request: Request) -> Mapping[str, Any]:
        state = "running" if rolled_back.is_set() else "frozen"
        looked.append(state)
        if len(looked) == 3:
            rolled_back.set()
        return {"jobs": [{**JOBS[0], "state": state}]}

    daemon.answers.update(checkpoint=stuck, ps=jobs)
    words = ["checkpoint", "llm", *(["--json"] if as_json else [])]
    with subprocess.Popen(gcr_command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert begun.wait(DEADLINE)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=DEADLINE)
    assert child.returncode == 130
    assert looked[-1] == "running"
    assert len(looked) == 4
    if as_json:
        assert '"code": "interrupted"' in out
        assert '"state": "running"' in out
    else:
        assert err.splitlines()[-1] == "gcr: interrupted; llm is running"


@pytest.mark.parametrize(("state", "hint"), [("running", "gcr ps, then again"), ("data_suspended", "gcr restore llm")])
@pytest.mark.parametrize("words", [("checkpoint", "llm"), ("restore", "llm"), ("swap", "llm", "llm")])
def test_a_command_left_by_its_daemon_says_where_the_job_stands(
    gcr: Gcr, daemon: FakeDaemon, words: tuple[str, ...], state: str, hint: str
) -> None:
    def dies(_body: dict[str, Any], _request: Request) -> Mapping[str, Any]:
        daemon.die()
        return {}

    daemon.answers.update({words[0]: dies, "ps": answering({"jobs": [{**JOBS[0], "state": state}]})})
    error = gcr("--json", *words).json["error"]
    assert (error["code"], error["exit"], error["state"], error["hint"]) == ("daemon_died", 4, state, hint)
    assert error["message"].startswith(f"the daemon died in the middle; llm is {state}")
    assert "rolled back" not in gcr(*words).err


@pytest.mark.parametrize(("answer", "code"), [(_progressing, 0), (raising(NoSuchJob("no job 'llm'")), 3)])
def test_a_stderr_that_cannot_be_written_stops_nothing(daemon: FakeDaemon, answer: Answer, code: int) -> None:
    """Progress goes there; and a command that ended in the middle would have its checkpoint taken back."""
    daemon.answers["checkpoint"] = answer
    with Path("/dev/full").open("w") as full:
        words = gcr_command(("checkpoint", "llm"))
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True, timeout=DEADLINE)
    assert (done.returncode, "gcr restore llm" in done.stdout) == (code, code == 0)


def test_several_jobs_are_all_tried_and_the_worst_is_the_exit_code(gcr: Gcr, daemon: FakeDaemon) -> None:
    def answer(body: dict[str, Any], _request: Request) -> dict[str, Any]:
        if body["target"] == "bb":
            raise WrongState("bb is suspended already", state="suspended", hint="gcr restore")
        if body["target"] == "cc":
            raise DeadlinePassed("not done within 5 s", state="running")
        return {**CHECKPOINT, "job": body["target"]}

    daemon.answers["checkpoint"] = answer
    ran = gcr("--json", "checkpoint", "bb", "cc", "llm", "llm")
    assert ran.code == 4
    assert [body["target"] for body in daemon.asked] == ["bb", "cc", "llm"]
    assert ran.json["ok"] is False
    assert [(row["job"], row["ok"]) for row in ran.json["jobs"]] == [("bb", False), ("cc", False), ("llm", True)]
    assert ran.json["jobs"][0]["error"]["code"] == "wrong_state"
    told = gcr("checkpoint", "bb", "llm")
    assert (told.code, told.out.splitlines()[0].split(":")[0]) == (3, "llm")
    assert told.err.splitlines()[0] == "gcr: bb: refused, nothing was touched"


def test_several_jobs_come_back(gcr: Gcr, daemon: FakeDaemon) -> None:
    ran = gcr("--json", "restore", "llm", "bb")
    assert (ran.code, ran.json["ok"], len(ran.json["jobs"])) == (0, True, 2)


@pytest.mark.parametrize(
    "line",
    [
        ("checkpoint", "a", "b", "--image", "warm"),
        ("restore", "a", "b", "--device", "0=1"),
        ("restore", "a", "b", "--image", "warm"),
        ("swap", "a"),
        ("swap", "a", "b", "c"),
    ],
    ids=" ".join,
)
def test_what_is_for_one_job_is_refused_for_several(gcr: Gcr, daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    ran = gcr("--json", *line)
    assert (ran.code, ran.json["error"]["code"]) == (2, "usage")
    assert daemon.asked == []


def test_swap_reports_both(gcr: Gcr, daemon: FakeDaemon) -> None:
    daemon.answers["swap"] = answering(SWAP)
    ran = gcr("--json", "swap", "llm", "bb", "--timeout", "60")
    assert (ran.json["out"], ran.json["in"]) == (SWAP["out"], SWAP["in"])
    assert daemon.asked == [{"op": "swap", "out": "llm", "in": "bb", "timeout": 60.0}]
    out, back = gcr("swap", "llm", "bb").out.splitlines()
    assert (out.split(":")[0], back.split(" after")[0]) == ("llm", "bb runs again")
    report = library.swap("llm", library.attach("llm"))
    assert report.to_json() == {
        **SWAP,
        "out": report.out.to_json(),
        "in": report.back.to_json(),
        "wall_s": report.wall_s,
    }
    assert (report.back.job, report.out.wall_s) == ("bb", 0.8)
