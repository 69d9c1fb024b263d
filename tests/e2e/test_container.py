"""A job in a container of runc's: it leaves its devices, the runtime has CRIU save the rest, and it comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from container import Container, RuncFailed, skip_without_runc
from filed import back
from machine import Machine, kill, until
from stored import store_of

from gcr.image.store.store import Store

LIMIT_S = 8.0  # for `gcr ps` beside a job that stays away
HOOK = """
case "$CRTOOLS_SCRIPT_ACTION" in
pre-dump) exec $gcr checkpoint llm --image night --container --store {store};;
post-resume) exec $gcr restore --image night --store {store};;
esac
"""


@pytest.fixture(autouse=True)
def runc() -> None:
    skip_without_runc()


@pytest.fixture
def job(machine: Machine) -> Iterator[Container]:
    job = Container(machine)
    job.ask("mixed 6 1000 2000000")
    yield job
    job.close()


@pytest.fixture
def locking(machine: Machine) -> Iterator[Container]:
    """Yields a job with a lock on a file, which CRIU saves only where it is told to."""
    job = Container(machine, first="exec 9>>held; flock 9;")
    job.ask("mixed 6 1000 2000000")
    yield job
    job.close()


def leave(machine: Machine, image: str) -> None:
    words = ("checkpoint", "llm", "--image", image, "--container", "--store", str(store_of(machine)))
    gone = machine.gcr(*words)
    assert gone.code == 0, gone.body
    assert (gone.body["state"], gone.body["cut"], gone.body["vram_after_bytes"]) == ("suspended", "process", 0)


def refused(machine: Machine, *words: str) -> tuple[int, str]:
    answer = machine.gcr(*words, "--store", str(store_of(machine)))
    return answer.code, answer.body["error"]["code"]


def images(machine: Machine) -> list[str]:
    return [*Store(store_of(machine)).images.names()]


def marks(machine: Machine) -> list[str]:
    return sorted(each.name for each in machine.socket.parent.iterdir() if ".away." in each.name)


def covered(pid: int) -> list[bool]:
    """Returns, for each mapping of the empty file that lies where device memory was, whether it is shared alone."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split()[1] == "---s" for line in lines if "gcr-addresses" in line]


def ended(machine: Machine) -> list[tuple[str, str]]:
    return [(row["job"], row["state"]) for row in machine.gcr("ps", "--all").body["ended"]]


def test_a_job_comes_back_with_its_container_as_it_was_generation_after_generation(
    machine: Machine, job: Container
) -> None:
    before, addresses, pid = job.ask(), job.ask("address"), job.pid
    for image in ("one", "two", "three"):
        leave(machine, image)
        assert len(marks(machine)) == 2  # the program's and the supervisor's
        assert (found := covered(job.pid)) and all(found), "CRIU would count each page of private memory"
        job.checkpoint(image)
        until(lambda: ended(machine) == [("llm", "stopped")] or None, 30.0, "the daemon sees that the job has ended")
        assert (machine.job("llm"), marks(machine)) == (None, [])
        if image == "two":
            machine.gcr("daemon", "stop")  # the next one never knew the job
        job.restore(image)
        assert back(machine, image)["state"] == "running"
        assert (job.ask(), job.ask("address")) == (before, addresses)
        assert ended(machine) == []
        job.find()
        assert job.pid != pid
        assert covered(job.pid) == []
    machine.leave()  # its supervisor is back, too
    assert not marks(machine)
    machine.come_back()
    assert job.ask() == before


def test_a_job_comes_back_in_place_where_its_container_runs_on(machine: Machine, locking: Container) -> None:
    job = locking
    before = job.ask()
    leave(machine, "one")
    job.checkpoint("one", "--leave-running", "--file-locks")
    machine.come_back()
    assert (job.ask(), marks(machine), covered(job.pid)) == (before, [], [])
    leave(machine, "two")
    with pytest.raises(RuncFailed, match="file lock"):
        job.checkpoint("two")
    back(machine, "two")
    assert (job.ask(), marks(machine)) == (before, [])


def test_a_failure_on_the_way_out_leaves_a_job_that_runs_on(machine: Machine, job: Container) -> None:
    before = job.ask()
    for step in ("held", "published", "away", "left"):
        machine.inject(f"checkpoint.{step} fail")
        assert refused(machine, "checkpoint", "llm", "--image", "night", "--container") == (4, "injected_fault"), step
        assert (machine.job("llm") or {})["state"] == "running", step
        assert (job.ask(), marks(machine), images(machine)) == (before, [], []), step
    leave(machine, "night")
    machine.come_back()
    assert job.ask() == before


def test_an_image_stays_while_a_job_that_was_not_taken_back_has_nothing_else(machine: Machine, job: Container) -> None:
    before = job.ask()
    machine.inject("checkpoint.left fail", "restore.room fail")
    assert refused(machine, "checkpoint", "llm", "--image", "night", "--container") == (4, "image_failed")
    assert (machine.until_state("llm", "suspended"), images(machine), marks(machine)) == ("suspended", ["night"], [])
    machine.come_back()
    assert job.ask() == before


def test_a_daemon_that_dies_on_the_way_out_leaves_a_suspended_job(machine: Machine, job: Container) -> None:
    before = job.ask()
    for step in ("held", "published", "away", "left"):
        machine.inject(f"checkpoint.{step} die")
        former = machine.daemon()
        machine.gcr("checkpoint", "llm", "--image", step, "--container", "--store", str(store_of(machine)))
        assert machine.daemon() != former, step
        assert machine.until_state("llm", "suspended", "running") == "suspended"
        machine.come_back()
        assert (job.ask(), marks(machine)) == (before, []), step


def test_a_new_daemon_knows_a_job_that_is_away(machine: Machine, job: Container) -> None:
    before = job.ask()
    leave(machine, "one")
    kept = marks(machine)
    kill(machine.daemon())
    assert machine.gcr("ps", timeout=LIMIT_S).body["jobs"][0]["state"] == "suspended"
    assert marks(machine) == kept
    assert refused(machine, "checkpoint", "llm", "--image", "two") == (3, "wrong_state")
    assert machine.gcr("restore", "llm", "--device", "7=8").code == 3
    kill(machine.daemon())
    job.checkpoint("one")
    job.restore("one")  # its agents come to no daemon, and wait
    assert refused(machine, "restore", "--image", "nothing") == (3, "no_such_image")
    back(machine, "one")
    assert (job.ask(), marks(machine)) == (before, [])


def test_criu_itself_may_call_both_commands(machine: Machine) -> None:
    """It calls each hook twice, for runc and for its configuration."""
    job = Container(machine, hook=HOOK.format(store=store_of(machine)))
    try:
        job.ask("mixed 6 1000 2000000")
        before = job.ask()
        job.checkpoint("one")
        assert images(machine) == ["night"]
        job.restore("one")
        assert machine.until_state("llm", "running") == "running"
        assert (job.ask(), marks(machine)) == (before, [])
    finally:
        job.close()


def test_a_job_without_its_supervisor_comes_back_also_where_the_socket_has_another_path(machine: Machine) -> None:
    job = Container(machine, below=True)
    try:
        before = job.ask()
        leave(machine, "none")
        machine.come_back()  # the program and the supervisor have seen their marks, and that these went
        kill(job.supervisor)
        leave(machine, "one")
        assert len(marks(machine)) == 1
        job.checkpoint("one")
        job.restore("one")
        back(machine, "one")
        assert job.ask() == before
    finally:
        job.close()


def test_what_cannot_be_restored_yet_is_refused_and_nothing_is_lost(machine: Machine, job: Container) -> None:
    before = job.ask()
    leave(machine, "one")
    job.checkpoint("one")
    assert refused(machine, "restore", "--image", "one") == (4, "not_restored")
    job.restore("one")
    back(machine, "one")
    job.ask("alloc 3 2097152")
    changed = job.ask()
    assert changed != before
    leave(machine, "two")
    job.find()
    job.checkpoint("two")
    job.restore("two")
    assert refused(machine, "restore", "--image", "one") == (3, "wrong_image")
    until(lambda: machine.job("llm"), 30.0, "its agents have come")
    assert machine.ask("restore", "llm").body["error"]["code"] == "wrong_image"  # it must be named
    back(machine, "two")
    assert job.ask() == changed


def test_a_job_that_cannot_leave_its_container_is_refused_untouched(machine: Machine) -> None:
    job = Container(machine, only_socket=True)
    try:
        before = job.ask()
        words = ("checkpoint", "llm", "--image", "one", "--container", "--store", str(store_of(machine)))
        answer = machine.gcr(*words)
        assert (answer.code, answer.body["error"]["code"]) == (3, "unsupported_state")
        assert "looks for its daemon at /only/gcrd.sock" in answer.body["error"]["message"]
        assert (job.ask(), marks(machine), machine.until_state("llm", "running")) == (before, [], "running")
        assert images(machine) == []
    finally:
        job.close()


def test_a_job_in_no_container_is_refused_untouched(machine: Machine) -> None:
    job, before = machine.start()
    assert refused(machine, "checkpoint", "llm", "--image", "one", "--container") == (3, "unsupported_state")
    assert (machine.until_state("llm", "running"), job.ask(), marks(machine)) == ("running", before, [])


def test_a_job_of_two_processes_comes_back_when_both_are_there(machine: Machine) -> None:
    job = Container(machine, first='mkfifo more; sh -c \'exec "$@" <>more >>other\' sh "$@" &')
    try:
        machine.targets("llm", 1)
        job.ask("alloc 1 2097152")
        with (machine.folder / "more").open("w") as other:
            other.write("alloc 2 4194304\n?\n")
        said = machine.folder / "other"
        until(lambda: len(said.read_text().splitlines()) == 3 or None, 30.0, "the other one answers")
        before, theirs = job.ask(), said.read_text().splitlines()[-1]
        machine.targets("llm", 2)
        leave(machine, "one")
        assert len(marks(machine)) == 3
        job.checkpoint("one")
        job.restore("one")
        back(machine, "one")
        assert job.ask() == before
        with (machine.folder / "more").open("w") as other:
            other.write("?\n")
        until(lambda: len(said.read_text().splitlines()) == 4 or None, 30.0, "the other one answers")
        assert said.read_text().splitlines()[-1] == theirs
    finally:
        job.close()
