"""Whole processes of a job at a terminal: its streams are refused; a terminal that only controls it is no obstacle."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from filed import Filed, back, stop
from machine import PATIENCE, VICTIMS, Machine, until
from stored import store_of

pytestmark = pytest.mark.usefixtures("criu")
INTERRUPT = b"\x03"


class Terminal:
    """A terminal of its own, at which one command of gcr's is in the foreground."""

    def __init__(self, machine: Machine, *words: str) -> None:
        self._main, its = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gcr", *words],
            env=dict(machine.env),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(its, termios.TIOCSCTTY, 0),
            **dict.fromkeys(("stdin", "stdout", "stderr"), its),
        )
        os.close(its)
        self.said = ""

    def types(self, text: bytes) -> None:
        os.write(self._main, text)

    def until_said(self, text: str) -> None:
        while text not in self.said:
            self.said += os.read(self._main, 4096).decode()

    def ends(self) -> int:
        """Returns its exit code; `said` is whole then."""
        code = self.process.wait(PATIENCE)
        with suppress(OSError):  # no process has the other end any more
            while data := os.read(self._main, 4096):
                self.said += data.decode()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)


@contextmanager
def terminal(machine: Machine, *words: str) -> Iterator[Terminal]:
    made = Terminal(machine, *words)
    yield made
    made.close()


class Controlled(Filed):
    """A job in the foreground of a terminal; its streams are files."""

    def _begin(self, folder: Path, command: Sequence[str]) -> None:
        self.machine.gcr("daemon", "start")
        self.terminal = Terminal(self.machine, "run", "--name", self.name, *self.machine.world, "--", *command)
        until(lambda: self.machine.job(self.name), PATIENCE, "the job is known")

    def close(self) -> None:
        self.terminal.close()
        super().close()


def test_streams_that_are_a_terminal_are_named_before_anything_stops(machine: Machine) -> None:
    program = (sys.executable, str(VICTIMS / machine.where.told))
    machine.gcr("daemon", "start")
    with terminal(machine, "run", "--name", "llm", *machine.world, "--", *program) as here:
        here.until_said("ready")
        done = machine.gcr("checkpoint", "llm", "--image", "night", "--stop", "--store", str(store_of(machine)))
        assert (done.code, done.body["error"]["code"], done.body["error"]["state"]) == (3, "cannot_save", "running")
        assert all(f"descriptor {fd}, /dev/pts/" in done.body["error"]["message"] for fd in range(3))
        assert "redirect it" in done.body["error"]["hint"]
        machine.leave()
        machine.come_back()
        here.types(b"?\n")
        here.until_said("held, digest")


def test_a_job_comes_back_from_its_terminal_to_none_and_to_another(machine: Machine) -> None:
    job = Controlled(machine)
    job.ask("mixed 6 1000 2000000")
    before = job.ask()
    stop(machine, "one")
    assert job.terminal.ends() == 137
    assert "llm was stopped into image one" in job.terminal.said
    back(machine, "one")
    assert (job.ask(), terminal_of(job.pid)) == (before, 0)
    stop(machine, "two")
    again = "restore", "--store", str(store_of(machine)), "--attach", "--image"
    with terminal(machine, *again, "two") as other:
        other.until_said("runs again")
        assert job.ask() == before
        assert terminal_of(job.pid) == terminal_of(other.process.pid) != 0
        stop(machine, "three")
        assert other.ends() == 137
        assert "llm was stopped into image three" in other.said
    with terminal(machine, *again, "three") as other:
        other.until_said("runs again")
        assert job.ask() == before
        other.types(INTERRUPT)
        assert other.ends() == 130
    job.close()


def terminal_of(pid: int) -> int:
    """Returns the number of the terminal that controls a process, 0 without one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4])
