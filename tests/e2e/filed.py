"""A job that is spoken to through a named pipe and a file, which outlive its process."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jsonschema
from machine import PATIENCE, VICTIMS, Machine
from stored import store_of

from gcr import schemas

LOOK_S = 0.005
SHELL = 'exec "$@" <lines >>answers 2>>errors'


class Filed:
    """The program of `told_victim.py`, or another of tests/victims with its arguments, under gcr, detached.

    `first`: words of a shell before it · `folder`: of its files; None for the machine's
    """

    def __init__(
        self,
        machine: Machine,
        name: str = "llm",
        first: str = "",
        program: Sequence[str] = (),
        folder: Path | None = None,
    ) -> None:
        self.machine, self.name = machine, name
        folder = folder or machine.folder
        os.mkfifo(folder / "lines")
        self._lines = os.open(folder / "lines", os.O_RDWR | os.O_CLOEXEC)
        self._answers, self._heard = folder / "answers", 0
        file, *arguments = program or (machine.where.told,)
        command = (sys.executable, str(VICTIMS / file), *arguments)
        self._begin(folder, ["sh", "-c", f"cd {folder}; {first} {SHELL}", "sh", *command])
        assert self.hear() == "ready"
        row = machine.job(name)
        assert row
        self.pid: int = row["pid"]

    def _begin(self, folder: Path, command: Sequence[str]) -> None:
        self.machine.gcr("daemon", "start")  # forked from a warm process; a detached supervisor has none
        done = self.machine.gcr("run", "-d", "--name", self.name, *self.machine.world, "--", *command)
        assert done.code == 0, done.body

    def ask(self, line: str = "?") -> str:
        os.write(self._lines, f"{line}\n".encode())
        return self.hear()

    def hear(self) -> str:
        end = time.monotonic() + PATIENCE
        while len(said := self._said()) <= self._heard:
            assert time.monotonic() < end, f"no answer within {PATIENCE:g} s: {said}"
            time.sleep(LOOK_S)
        self._heard += 1
        return said[self._heard - 1]

    def _said(self) -> list[str]:
        return self._answers.read_text().splitlines() if self._answers.exists() else []

    def close(self) -> None:
        os.close(self._lines)


def stop(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    gone = machine.gcr("checkpoint", "llm", "--image", name, "--stop", "--store", str(store_of(machine)), *flags)
    assert gone.code == 0, gone.body
    _validate("checkpoint", gone.body)
    return gone.body


def back(machine: Machine, name: str, *flags: str) -> dict[str, object]:
    done = machine.gcr("restore", "--image", name, "--store", str(store_of(machine)), *flags)
    assert done.code == 0, (done.body, done.stderr)
    _validate("restore", done.body)
    return done.body


def _validate(command: str, body: dict[str, object]) -> None:
    jsonschema.Draft202012Validator(schemas.load(command)).validate(body)


def refused(machine: Machine, name: str, *flags: str) -> tuple[int, str]:
    """The job is not stopped. Returns the exit code, and the error's."""
    gone = machine.gcr("checkpoint", "llm", "--image", name, "--stop", "--store", str(store_of(machine)), *flags)
    return gone.code, gone.body["error"]["code"]
