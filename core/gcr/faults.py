"""Fault injection for gcr's own tests: stop, fail or die at a named step of a transaction.

`GCR_FAULTS` is a file, re-read at every step (so that a running daemon can be told), one rule a line:

    checkpoint.quiesced fail              the step raises
    checkpoint.staged die                 this process is killed (SIGKILL)
    restore.back hold /tmp/held           the file is made, and the step waits until it is gone (30 s at most)

A rule fires once. Without the variable a step costs one look into the environment.
"""

import os
import signal
import threading
import time
from pathlib import Path

from gcr.errors import RolledBack

VARIABLE = "GCR_FAULTS"
LONGEST_HOLD = 30.0

_taking = threading.Lock()


class InjectedFault(RolledBack):
    """A fault that gcr's own tests asked for by `GCR_FAULTS`."""

    code = "injected_fault"


def reach(step: str) -> None:
    """A transaction has come to `step`."""
    rules = os.environ.get(VARIABLE)
    if not rules:
        return
    for action in _take(Path(rules), step):
        _act(action, step)


def _take(rules: Path, step: str) -> list[list[str]]:
    """The rules for this step, which are spent by being read; of several processes of a job one gets them."""
    with _taking:
        try:
            lines = rules.read_text().splitlines()
        except FileNotFoundError:
            return []
        mine = [line for line in lines if line.split(maxsplit=1)[:1] == [step]]
        if mine:
            fresh = rules.with_suffix(f".{os.getpid()}")
            fresh.write_text("".join(f"{line}\n" for line in lines if line not in mine))
            fresh.replace(rules)
        return [line.split()[1:] for line in mine]


def _act(action: list[str], step: str) -> None:
    match action:
        case ["fail"]:
            raise InjectedFault(f"injected at {step}")
        case ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["hold", file]:
            _hold(Path(file))
        case _:
            raise ValueError(f"no such fault: {action}")


def _hold(file: Path) -> None:
    file.touch()
    end = time.monotonic() + LONGEST_HOLD
    while file.exists() and time.monotonic() < end:
        time.sleep(0.005)
