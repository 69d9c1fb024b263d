"""Everything together: a program under `gcr run` goes off its device and comes back, bit for bit, at its addresses."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gcr.testing import Job, SimulatedMachine

VICTIM_BYTES = 26 << 20  # what it asks for, at least
VICTIM = (sys.executable, str(Path(__file__).with_name("victim.py")))

WITH_A_CHILD = """
import os, runpy, subprocess, sys
bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
child = subprocess.Popen(sys.argv[1:], env=bare, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert child.stdout.readline() == b"ready\\n"
runpy.run_path(sys.argv[-1], run_name="__main__")
"""


@pytest.mark.parametrize("options", [(), ("--data-only",)], ids=["all of it", "data only"])
def test_a_job_goes_and_comes_back_as_it_was(gcr_machine: SimulatedMachine, options: tuple[str, ...]) -> None:
    job = gcr_machine.run("llm", *VICTIM)
    before = job.ask()
    for _ in range(3):
        gone = gcr_machine.gcr("checkpoint", "llm", *options)
        assert gone.code == 0, gone.body
        assert gone.body["strategy"] == "handoff"
        assert gone.body["bytes"] >= VICTIM_BYTES, "the driver carried the rest: the shim did not see it made"
        assert gone.body["state"] == ("data_suspended" if options else "suspended")
        assert options or gone.body["vram_after_bytes"] == 0
        back = gcr_machine.gcr("restore", "llm")
        assert back.code == 0, back.body
        assert job.ask() == before


def test_a_checkpoint_that_fails_leaves_the_program_as_it_was(gcr_machine: SimulatedMachine) -> None:
    job = gcr_machine.run("llm", *VICTIM)
    before = job.ask()
    gcr_machine.inject("checkpoint.staged fail")
    failed = gcr_machine.gcr("checkpoint", "llm")
    assert failed.body["error"]["code"] == "injected_fault", failed.body
    assert job.ask() == before
    assert gcr_machine.gcr("checkpoint", "llm").code == 0
    assert gcr_machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_under_gcr_it_prints_what_it_prints_bare(gcr_machine: SimulatedMachine) -> None:
    def bytes_of(line: str) -> list[str]:
        return [each.partition(":")[2] for each in line.split()]

    job = gcr_machine.run("llm", *VICTIM)
    assert bytes_of(job.ask()) == bytes_of(gcr_machine.begin_bare(*VICTIM).ask())


def test_the_name_of_the_backend_alone_chooses_the_shim(
    gcr_machine: SimulatedMachine, gcr_device: Mapping[str, str]
) -> None:
    """As on a real device: nothing is simulated as far as gcr is told, and the driver is on the library path."""
    gcr_machine.extra["LD_LIBRARY_PATH"] = gcr_device["LD_LIBRARY_PATH"]
    job = Job("llm", gcr_machine.begin("--backend", "acme", "run", "--name", "llm", "--", *VICTIM))
    before = gcr_machine.ready(job).ask()
    assert gcr_machine.gcr("checkpoint", "llm").body["strategy"] == "handoff"
    assert gcr_machine.gcr("restore", "llm").code == 0
    assert job.ask() == before


def test_a_process_that_gcr_hears_nothing_of_is_not_left_behind(gcr_machine: SimulatedMachine) -> None:
    """The daemon recognises it by the driver that `gcr.toml` declares."""
    job = gcr_machine.run("llm", sys.executable, "-c", WITH_A_CHILD, *VICTIM)
    before = job.ask()
    refused = gcr_machine.gcr("checkpoint", "llm")
    assert refused.body["error"]["code"] == "unsupported_state", refused.body
    assert "gcr hears nothing of it" in refused.body["error"]["message"]
    assert job.ask() == before
