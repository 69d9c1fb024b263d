"""The start of the command: its imports, its speed, and Ctrl-C before it is there."""

import subprocess
import sys
import time

import pytest

from .conftest import DEADLINE
from .fake_daemon import STATUS, FakeDaemon, answering

_IMPORTED = """
import sys
from gcr.cli.main import main
main(sys.argv[1:])
print(*sorted(sys.modules), file=sys.stderr)
"""
_VENDORS = ("cuda", "pynvml", "hip", "acl", "torch", "gcr_nvidia", "gcr_amd", "gcr_ascend")


@pytest.mark.parametrize(
    "line", [("--help",), ("ps",), ("ps", "--json"), ("checkpoint", "llm"), ("daemon", "status")], ids=" ".join
)
def test_neither_a_vendor_nor_rich_is_imported(daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    daemon.answers["status"] = answering(STATUS)
    done = subprocess.run([sys.executable, "-c", _IMPORTED, *line], capture_output=True, text=True, timeout=DEADLINE)
    imported = {name.partition(".")[0] for name in done.stderr.split()}
    assert "gcr" in imported
    assert not imported & {"rich", *_VENDORS}


@pytest.mark.alone
@pytest.mark.parametrize("line", [("--help",), ("ps",)], ids=" ".join)
def test_help_and_ps_take_less_than_a_fifth_of_a_second(daemon: FakeDaemon, line: tuple[str, ...]) -> None:
    """The fastest of some starts counts, and of more where other work slows them down: it lets one be in time."""

    def seconds(*words: str) -> float:
        began = time.monotonic()
        subprocess.run([sys.executable, *words], capture_output=True, check=True, timeout=DEADLINE)
        return time.monotonic() - began

    bare, ours, end = list[float](), list[float](), time.monotonic() + DEADLINE
    while len(ours) < 5 or min(ours) >= 0.2 * max(1, min(bare) / 0.05):  # this machine may be slow, or this moment
        assert time.monotonic() < end, (min(bare), min(ours))
        bare.append(seconds("-c", "import click"))
        ours.append(seconds("-m", "gcr", *line))


def test_importing_the_library_is_silent_and_loads_no_part_of_it() -> None:
    script = "import sys, gcr; print(*[name for name in sys.modules if name.startswith('gcr')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE)
    assert (sorted(done.stdout.split()), done.stderr) == (["gcr", "gcr.version"], "")


EARLY = """
import sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "gcr.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
from gcr.cli.entry import program
program()
"""


def test_ctrl_c_before_there_is_a_command_is_one_too() -> None:
    """Its modules are still being loaded, which takes long on a busy machine."""
    done = subprocess.run([sys.executable, "-c", EARLY, "ps"], capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
