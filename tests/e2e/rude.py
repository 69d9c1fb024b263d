"""The program without manners (tests/victims/rude), built once, and scripts that it answers bare and under gcr."""

import functools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from machine import VICTIMS, Machine, Victim

SOURCES = VICTIMS / "rude"
FILES = ("main.c", "storms.c", "signals.c", "processes.c", "threads.c", "limits.c", "memory.c")
SECONDS = 60


def compiled(folder: Path, name: str, *words: str) -> Path:
    target = folder / name
    strict = ["-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run(["cc", *strict, *words, "-o", target, "-ldl", "-lpthread"], check=True, timeout=SECONDS)
    return target


@functools.cache
def program(folder: Path) -> str:
    """The program, of the folder that all tests of this process build in."""
    return str(compiled(folder, "rude", *(str(SOURCES / file) for file in FILES)))


def swap(machine: Machine, *, after: Callable[[], object] = lambda: None) -> None:
    """There and back, both without an error; `after`: what is seen while it is suspended."""
    gone = machine.ask("checkpoint", "llm")
    assert (gone.code, gone.body.get("state"), gone.body.get("vram_after_bytes")) == (0, "suspended", 0), gone.body
    after()
    back = machine.ask("restore", "llm")
    assert (back.code, back.body.get("state")) == (0, "running"), back.body


def says(job: Victim, script: Sequence[str]) -> list[str]:
    return [f"{line}: {job.ask(line)}" for line in script]


def bare(machine: Machine, command: Sequence[str], script: Sequence[str]) -> list[str]:
    """Returns the program's answers without gcr, on the same devices."""
    job = machine.begin_bare(*command)
    said = says(job, script)
    assert job.supervisor.poll() is None
    job.supervisor.kill()
    job.supervisor.wait(10)
    return said
