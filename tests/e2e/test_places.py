"""Folders that another takes away, daemons that share them, and what becomes of the jobs: nothing is lost."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from little_room import large, words
from machine import TOLD, Machine, kill
from stored import store_of

from gcr.testing.machine import until
from gcr.version import __version__


def written(machine: Machine, name: str) -> list[Path]:
    """A file of a daemon's folder, of each daemon that has it."""
    return sorted((machine.folder / "state").glob(f"gcr/daemons/*/{name}"))


def test_a_logout_takes_nothing_from_a_suspended_job(machine: Machine) -> None:
    """logind removes the runtime directory. A cleaner takes the state directory as well, and then the daemon dies."""
    job = machine.told("llm")
    said, daemon = job.ask(), machine.daemon()
    machine.leave()
    shutil.rmtree(machine.folder / "run" / "gcr")
    listed = machine.gcr("ps").body
    assert [row["state"] for row in listed["jobs"]] == ["suspended"], listed
    assert machine.daemon() == daemon
    until(lambda: machine.children("gcr.daemon") == [daemon] or None, 20, "one that met the empty folder has given up")
    shutil.rmtree(machine.folder / "state" / "gcr" / "daemons")
    until(lambda: written(machine, "journal/llm.copy") and written(machine, "lock"), 20, "it is written again")
    assert machine.daemon() == daemon
    kill(daemon)
    machine.come_back()
    assert job.ask() == said


def test_two_daemons_keep_their_jobs_apart(machine: Machine) -> None:
    """One user, two sockets, a job of the same name under each."""
    other = Machine(machine.folder, extra={"GCR_SOCKET": str(machine.folder / "other" / "s")})
    (machine.folder / "other").mkdir(mode=0o700)
    one, two = machine.told("llm"), other.run("llm", sys.executable, TOLD)
    said = one.ask(), two.ask()
    machine.leave()
    other.leave()
    kill(*machine.children("gcr.daemon"))
    other.come_back()
    machine.come_back()
    assert (one.ask(), two.ask()) == said
    other.close()


def test_a_daemon_that_stopped_does_not_hide_the_jobs(machine: Machine) -> None:
    job = machine.told("llm")
    said = job.ask()
    machine.leave()
    for _ in range(4):
        assert machine.gcr("daemon", "stop", "--force").code == 0
        listed = machine.gcr("ps").body
        assert [row["state"] for row in listed.get("jobs", [])] == ["suspended"], listed
    machine.come_back()
    assert job.ask() == said


OLDER = "import gcr.version as v, runpy; v.__version__ = '0.0.1'; runpy.run_module('gcr.daemon', None, '__main__')"


def older(machine: Machine, command: str) -> dict[str, Any]:
    """A command of its own version."""
    with machine.connected(any_version=True) as client:
        return client.request(command, {"target": "llm", **machine.where.how}, timeout=60.0)


def test_a_daemon_of_an_earlier_version_hands_over(machine: Machine) -> None:
    """After an upgrade with a suspended job the next command finds the job, unless another is under way."""
    old = machine.begin_other(sys.executable, "-c", OLDER)
    until(machine.socket.exists, 20, "it serves")
    job = machine.told("llm")
    said = job.ask()
    with machine.held_at("checkpoint.staged"):
        leaving = machine.asking.submit(older, machine, "checkpoint")
        machine.wait_held()
        refused = machine.gcr("ps")
        assert (refused.code, refused.body["error"]["code"]) == (3, "wrong_version"), refused.body
        assert "0.0.1" in refused.body["error"]["message"] and "llm" in refused.body["error"]["message"]
    assert leaving.result(60)["state"] == "suspended"
    listed = machine.gcr("ps")
    assert [row["state"] for row in listed.body.get("jobs", [])] == ["suspended"], listed.body
    assert machine.gcr("daemon", "status").body["version"] == __version__
    old.wait(20)
    machine.come_back()
    assert job.ask() == said


@pytest.mark.parametrize("supervised", [True, False], ids=["supervised", "orphaned"])
def test_a_damaged_record_loses_no_job_that_is_in_an_image_alone(machine: Machine, supervised: bool) -> None:
    """Both of its files, while its daemon dies: the supervisor has a copy, and else the user can name the image."""
    job, said = large(machine)
    assert machine.gcr(*words(machine)).code == 0
    (daemon,) = machine.children("gcr.daemon")
    if not supervised:
        machine.leaves(lambda: kill(job.supervisor.pid))
    os.kill(daemon, signal.SIGSTOP)
    files = [*written(machine, "journal/llm.json"), *written(machine, "journal/llm.copy")]
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"warm", b"warn"))
    assert len(files) == 2
    kill(daemon)
    if not supervised:
        machine.daemon()
    assert machine.until_state("llm", "suspended", "lost") == "suspended"
    pruned = machine.gcr("prune", "--keep-last", "0", "--store", str(store_of(machine)))
    assert (pruned.code, pruned.body["images"]) == (0, []), pruned.body
    if not supervised:
        refused = machine.gcr("restore", "llm")
        assert (refused.code, refused.body["error"]["code"]) == (3, "wrong_image"), refused.body
        back = machine.gcr("restore", "--image", "warm", "--store", str(store_of(machine)))
        assert back.code == 0, back.body
        return
    machine.come_back()
    assert job.ask() == said
