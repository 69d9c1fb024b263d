"""A private node for one test: its own runtime directory, state, simulated GPUs, and every process that belongs to it.

Everything is driven from outside, by the command line and by signals, as a user or an unlucky night would.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gcr.testing.machine import PATIENCE, Answer, SimulatedMachine, alive, until
from gcr.testing.machine import Job as Victim

__all__ = ["PATIENCE", "ROOT", "TOLD", "VICTIMS", "Answer", "Machine", "Victim", "alive", "bytes_short", "until"]

ROOT = Path(__file__).parents[2]
VICTIMS = ROOT / "tests" / "victims"
TOLD = str(VICTIMS / "told_victim.py")
ON_DEVICE = bool(os.environ.get("GCR_E2E_ON_DEVICE"))  # the same tests on a real GPU: tests/gpu/device.sh deaths


@dataclass
class Machine(SimulatedMachine):
    vendor: str = "nvidia"

    @property
    def world(self) -> Sequence[str]:
        return () if ON_DEVICE else super().world

    def told(self, name: str, *, before: Sequence[str] = ()) -> Victim:
        """A job that does what it is told (tests/victims/told_victim.py)."""
        return self.run(name, *before, sys.executable, TOLD)

    def stranger(self, *argv: str) -> Victim:
        """A program on the same simulated devices that gcr knows nothing of."""
        return self.begin_bare(*(argv or (sys.executable, TOLD)))

    # ---- faults -----------------------------------------------------------------------------------------------

    @contextmanager
    def held_at(self, step: str) -> Iterator[None]:
        """Within the block the next transaction stands at `step`, once it was begun by the block's own hand."""
        held = self.folder / "held"
        self.inject(f"{step} hold {held}")
        try:
            yield
        finally:
            held.unlink(missing_ok=True)

    def wait_held(self) -> None:
        until(lambda: (self.folder / "held").exists() or None, PATIENCE, "the transaction comes to the step")


def bytes_short(answer: Answer) -> int:
    """How much is missing, as a refusal for lack of room says it: in its field and to people alike."""
    error = answer.body["error"]
    assert f"{error['missing']} bytes short" in error["message"]
    return int(error["missing"])
