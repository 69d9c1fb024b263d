"""A stranger's backend that is broken in the worker or the control helper: a typed error, and nothing was touched."""

import os
import sys
from pathlib import Path

import pytest
from machine import VICTIMS, Machine

ALLOC = str(VICTIMS / "alloc_victim.py")
BROKEN = """
from gcr.control import ControlMeans
from gcr.hookspecs import hookimpl
from gcr.vmm import VmmDrain
from gcr_nvidia import NvidiaBackend

def mistake(*_arguments):
    raise KeyError("the stranger's own mistake")

class Control:
    means = ControlMeans.DRIVER
    phase = inspect = lock = checkpoint = restore = unlock = mistake

class Drain(VmmDrain):
    adopt = create = read = mistake

class Backend(NvidiaBackend):
    name = "stranger"
    def {method}(self, *_arguments):
        {body}

@hookimpl
def gcr_backends():
    return [Backend()]
"""


CASES = {
    "no drain": ("drain", "mistake()"),
    "a drain that does nothing": ("drain", "return Drain(NvidiaBackend.drain(self, *_arguments)._driver)"),
    "no control": ("control", "mistake()"),
    "a control that does nothing": ("control", "return Control()"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_backend_that_raises_is_a_typed_error_and_the_program_runs_on(
    machine: Machine, tmp_path: Path, case: str
) -> None:
    method, body = CASES[case]
    (tmp_path / "stranger.py").write_text(BROKEN.format(method=method, body=body))
    machine.vendor = "stranger"
    machine.extra["GCR_PLUGINS"] = "gcr_nvidia,stranger"
    machine.extra["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    job = machine.run("llm", sys.executable, ALLOC, "--interactive")
    before = job.ask()
    failed = machine.gcr("checkpoint", "llm")
    assert "the stranger's own mistake" in failed.body["error"]["message"], failed.body
    assert failed.body["error"]["state"] == "running"
    assert (failed.code, failed.body["error"]["code"]) == (3, "backend_missing"), failed.body
    assert job.ask() == before
    machine.vendor = "nvidia"
    other = machine.run("other", sys.executable, ALLOC, "--interactive")
    untouched = other.ask()
    assert machine.gcr("checkpoint", "other").code == 0
    assert machine.gcr("restore", "other").code == 0
    assert other.ask() == untouched
