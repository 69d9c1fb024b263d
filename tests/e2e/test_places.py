"""Folders that another takes away, daemons that share them, and what becomes of the jobs: nothing is lost."""

import shutil
import sys
from pathlib import Path

from machine import TOLD, Machine, kill

from gcr.testing.machine import until


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
    assert (machine.daemon(), machine.children("gcr.daemon")) == (daemon, [daemon])
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
