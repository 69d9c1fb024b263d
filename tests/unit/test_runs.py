"""Records of jobs: a job's end is known after any death of gcr's processes, and the number of records is bounded."""

import errno
import json
import os
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from gcr import processes
from gcr.daemon.ended import note_job_end
from gcr.daemon.jobs import Job
from gcr.daemon.recall import recall_program
from gcr.engine.node import World
from gcr.errors import NoSuchJob
from gcr.job import runs
from gcr.job.runs import End, How, Run

GONE = 4194304 + 7  # no pid


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "gcrd.sock"))
    return tmp_path


def run_of(
    job: str = "llm", identity: str = "a1", *, supervisor: int = GONE, pid: int = GONE, began: float = 1.0
) -> Run:
    return Run(
        job=job,
        id=identity,
        socket=os.environ["GCR_SOCKET"],
        boot=processes.boot_id(),
        space=processes.pid_space(),
        command=("python", "serve.py"),
        supervisor=supervisor,
        supervisor_start=processes.start_time(supervisor) or 0,
        pid=pid,
        start=processes.start_time(pid) or 0,
        began=began,
    )


def test_a_record_comes_back_as_it_was_written_and_is_its_owner_s_alone() -> None:
    made = replace(run_of(), log="/somewhere", end=End.of_code(-9))
    runs.write(made)
    assert runs.all_runs() == [made]
    (path,) = runs.folder().iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("known", [(), ("python", "serve.py")])
def test_a_new_daemon_learns_the_program_from_it_though_the_supervisor_has_told_the_command(
    known: tuple[str, ...],
) -> None:
    runs.write(replace(run_of(supervisor=os.getpid(), pid=os.getpid()), id=runs.identifier("token")))
    job = Job("llm", "token", World("nvidia"))
    job.program.argv = known
    recall_program(job)
    assert (job.program.argv, job.program.pid) == (("python", "serve.py"), os.getpid())


def test_several_threads_may_write_a_record_at_once() -> None:
    """A daemon notes the end of a job from wherever it learns of it."""
    short = run_of(supervisor=os.getpid(), pid=os.getpid())
    long = replace(short, command=("x" * 9000,))
    seen: list[list[Run]] = []
    with ThreadPoolExecutor(4) as several:
        writing = [several.submit(runs.write, each) for _ in range(200) for each in (long, short)]
        while not all(each.done() for each in writing):
            seen.append(runs.all_runs())
    assert [each.exception() for each in writing if each.exception()] == []
    assert all(found in ([long], [short], []) for found in seen) and runs.all_runs() in ([long], [short])


@pytest.mark.parametrize(
    ("returned", "was", "code", "said"),
    [
        (0, "running", 0, "exit code 0"),
        (3, None, 3, "exit code 3"),
        (-9, "suspended", 137, "killed by SIGKILL while suspended"),
        (-15, "running", 143, "killed by SIGTERM"),
        (1, "lost", 1, "exit code 1 while lost"),
    ],
)
def test_an_end_says_what_gcr_run_returned(returned: int, was: str | None, code: int, said: str) -> None:
    end = replace(End.of_code(returned), was=was)
    assert (end.code, end.said()) == (code, said)


@pytest.mark.parametrize(
    ("image", "store", "said", "hint"),
    [
        ("night", "/a b/s", "stopped into image night", "gcr restore --image night --store '/a b/s'"),
        ("night", None, "stopped into image night", "gcr restore --image night"),  # noted by an earlier version
        (None, None, "stopped into an image", "gcr ps --all"),  # by one before that
        ("migration-0123456789ab-2", "/s", "stopped to move to another node", "gcr ps --all"),
    ],
)
def test_a_stopped_job_names_its_image_and_the_way_back(
    image: str | None, store: str | None, said: str, hint: str
) -> None:
    runs.write(replace(run_of(), end=replace(End.of_code(-9), was=runs.STOPPED, image=image, store=store)))
    with pytest.raises(NoSuchJob, match=said) as refused:
        runs.refuse_ended("llm")
    assert (refused.value.state, refused.value.hint) == ("stopped", hint)
    assert runs.all_runs()[0].row()["image"] == image


def test_an_end_that_its_supervisor_writes_just_now_is_awaited_and_not_that_of_an_older_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "_ENDING_S", 20.0)
    runs.write(replace(run_of(identity="older"), end=End.of_code(3)))
    new = run_of(supervisor=os.getpid(), began=2.0)
    runs.write(new)
    killed = End.of_code(-9)

    def write() -> None:
        for end in (killed, replace(killed, was=runs.STOPPED, image="night")):
            time.sleep(0.1)
            runs.write(replace(new, end=end))

    writing = threading.Thread(target=write)
    writing.start()
    with pytest.raises(NoSuchJob, match="stopped into image night"):
        runs.refuse_ended("llm")
    writing.join()


def test_the_end_of_a_program_that_runs_is_not_awaited() -> None:
    runs.write(run_of(supervisor=os.getpid(), pid=os.getpid()))
    began = time.monotonic()
    runs.refuse_ended("llm")
    assert time.monotonic() - began < 1.0


def test_a_job_runs_while_its_program_or_its_supervisor_does() -> None:
    runs.write(run_of(pid=os.getpid()))
    assert runs.all_runs()[0].end is None
    runs.write(run_of(supervisor=os.getpid()))
    assert runs.all_runs()[0].end is None


def test_an_end_that_no_one_wrote_down_is_seen_by_the_next_look_and_stays_as_it_was_seen() -> None:
    child = subprocess.Popen(["sleep", "60"])
    runs.write(run_of(pid=child.pid))
    assert runs.all_runs()[0].end is None
    child.kill()
    child.wait()
    (seen,) = runs.all_runs()
    assert seen.end and (seen.end.how, seen.end.code) == (How.UNKNOWN, None)
    time.sleep(0.01)
    assert runs.all_runs() == [seen]


def test_before_a_reboot_nothing_that_runs_now_has_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    runs.write(replace(run_of(pid=os.getpid()), boot="another"))
    assert runs.all_runs()[0].end


def test_a_process_in_another_space_of_pids_is_not_declared_dead() -> None:
    runs.write(replace(run_of(), space="pid:[1]"))
    assert runs.all_runs() == []
    (path,) = runs.folder().iterdir()
    assert json.loads(path.read_text())["end"] is None


def test_the_daemon_s_note_never_replaces_what_a_supervisor_wrote_or_will_write() -> None:
    runs.write(replace(run_of(), end=End.of_code(7)))
    runs.note_end("llm", "a1", "suspended")
    assert runs.all_runs()[0].end == replace(End.of_code(7), at=runs.all_runs()[0].end.at)  # type: ignore[union-attr]
    runs.write(run_of("other", supervisor=os.getpid()))
    assert not runs.note_end("other", "a1", "suspended")
    assert runs.runs_of("other")[0].end is None


def test_a_supervisor_that_ends_last_keeps_no_end_from_being_noted() -> None:
    """It is killed with the program, by a container's runtime for one, and may be there still when that is gone."""
    with subprocess.Popen(["sleep", "60"]) as supervisor:
        runs.write(run_of(identity=runs.identifier("token"), supervisor=supervisor.pid))
        note_job_end("llm", "token", "stopped")
        assert runs.runs_of("llm")[0].end is None
        supervisor.kill()
    latest = time.monotonic() + 10
    while (end := runs.runs_of("llm")[0].end) is None or end.was != "stopped":
        assert time.monotonic() < latest
        time.sleep(0.01)


def test_another_daemon_s_jobs_are_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs.write(run_of())
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "second.sock"))
    assert runs.all_runs() == []


def test_the_newest_comes_first_and_only_so_many_are_kept_with_their_logs() -> None:
    for number in range(6):
        one = run_of(identity=f"{number}", began=number)
        log = runs.log_path(one.job, one.id)
        log.write_text("said")
        runs.write(replace(one, log=str(log), end=End.of_code(0)))
        os.utime(runs.folder() / f"llm.{number}.json", (time.time() + number,) * 2)
    runs.prune(2)
    assert [run.id for run in runs.runs_of("llm")] == ["5", "4"]
    assert sorted(path.name for path in runs.folder().iterdir()) == [
        "llm.4.json",
        "llm.4.log",
        "llm.5.json",
        "llm.5.log",
    ]


def test_old_records_go_and_a_job_that_runs_stays_however_old() -> None:
    runs.write(replace(run_of(identity="old"), end=End.of_code(0)))
    runs.write(run_of(identity="runs", pid=os.getpid()))
    for path in runs.folder().iterdir():
        os.utime(path, (1.0, 1.0))
    runs.prune(100)
    assert [run.id for run in runs.all_runs()] == ["runs"]


def test_what_dead_writers_have_left_goes_and_what_is_being_written_stays() -> None:
    old = time.time() - 2 * runs.WRITING_S
    for name, written in (
        (f"llm.a1.json.{GONE}", old),
        (f"llm.a1.json.{os.getpid()}", old),  # a writer that is stopped, perhaps
        (f"llm.a2.json.{GONE}", time.time()),  # a writer in another container, perhaps
        (f"llm.a3.json.{os.getpid()}", 1.0),  # another process has its pid by now
    ):
        path = runs.folder() / name
        path.write_text("{")
        os.utime(path, (written, written))
    runs.prune(100)
    left = sorted(path.name for path in runs.folder().iterdir())
    assert left == [f"llm.a1.json.{os.getpid()}", f"llm.a2.json.{GONE}"]


def test_a_record_that_cannot_be_written_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs.json, "dump", full)
    with pytest.raises(OSError, match="No space"):
        runs.write(run_of())
    assert list(runs.folder().iterdir()) == []


def test_what_is_no_record_is_passed_over() -> None:
    (runs.folder() / "llm.x.json").write_text("{}")
    (runs.folder() / "llm.y.json").write_text("[")
    assert runs.all_runs() == []


def test_the_daemon_adds_in_which_state_a_job_was_that_no_one_else_told_of() -> None:
    runs.write(run_of(identity="old", began=1.0))
    runs.write(run_of(identity="new", began=2.0))
    assert [run.end.was for run in runs.all_runs() if run.end] == [None, None]  # seen by a look before
    runs.note_end("llm", None, "suspended")
    assert [run.end.was for run in runs.all_runs() if run.end] == ["suspended", None]
    runs.note_end("llm", "old", "running")
    assert [run.end.was for run in runs.all_runs() if run.end] == ["suspended", "running"]
