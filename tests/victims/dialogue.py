"""The dialogue of a victim with its caller, and its steps.

Interactive: `ready`, then a line for each line asked. Held: `ready`, then one line says how much to do: a number of
steps (with a comma between those of several threads), or `on`: until standard input ends. At the end it says how much
that was, so that another run can do as much. Both have done a few steps before, so that what is made at first is there.
In slices: some steps whenever it is asked (benchmarks/slices.py); nothing is queued when one is over.
"""

import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse

WARM = 3  # steps
WARM_SLICES = 30


class Program(Protocol):
    def step(self) -> str:
        """A part of its work, and what came of it."""

    def digest(self) -> str:
        """Returns a digest of everything the program holds."""


def say(text: str) -> None:
    print(text, flush=True)


def note(text: str) -> None:
    """Prints a text that may differ from run to run."""
    print(text, file=sys.stderr, flush=True)


def serve(answer: Callable[[], str]) -> None:
    say("ready")
    for _line in sys.stdin:
        say(answer())


def parser(description: str | None, steps: int = 20) -> "argparse.ArgumentParser":
    import argparse  # many programs take no options, and start in less time without it

    made = argparse.ArgumentParser(description=description)
    made.add_argument("--steps", type=int, default=steps)
    made.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    made.add_argument("--interactive", action="store_true", help="answer each line on standard input by a digest")
    made.add_argument("--hold", action="store_true", help="do as a line on standard input says: a number, or `on`")
    made.add_argument("--slices", action="store_true", help="take steps as benchmarks/slices.py asks for them")
    return made


def perform(options: "argparse.Namespace", program: Program) -> None:
    """Takes the program's steps, printing the result of each, and prints its digest at the end."""
    for _ in range(WARM if options.interactive or options.hold else 0):
        program.step()
    if options.interactive:
        serve(program.digest)
        return
    if options.slices:
        in_slices(program)
        return
    done = 0
    for number in numbers(held() if options.hold else str(options.steps)):
        say(f"step {number} {program.step()}")
        done = number + 1
        time.sleep(options.pause)
    say(f"steps {done}")
    say(f"digest {program.digest()}")


def in_slices(program: Program) -> None:
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import slices

    for _ in range(WARM_SLICES):
        program.step()
    slices.serve(program.step)


def numbers(much: str) -> Iterator[int]:
    number = 0
    while not over() if much == "on" else number < int(much):
        yield number
        number += 1


def held() -> str:
    """Returns how much to do, once the caller says it."""
    say("ready")
    return sys.stdin.readline().strip()


def over() -> bool:
    """Returns True if standard input has ended."""
    return bool(select.select([sys.stdin], [], [], 0)[0])
