"""The programs of the first page do under gcr what they do without it.

The server runs on the simulated device, and on a real one under GCR_E2E_ON_DEVICE. The training job needs a real device
and PyTorch. On a device both are the piece `examples` of tests/gpu/device.sh.
"""

import importlib.util
import sys
import urllib.parse
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from machine import ROOT, Machine, Victim
from worlds import ON_DEVICE

from gcr.testing.machine import simulated_driver

SERVER = (sys.executable, str(ROOT / "examples" / "server.py"), "--port", "0")
TRAINING = (sys.executable, str(ROOT / "examples" / "train.py"), "--steps", "600", "--width", "1024")
PROMPTS = ("The program", "import", "def ")
SHORT = 0.3  # seconds in which a suspended server has not answered


def bare(machine: Machine, *command: str) -> Victim:
    world = {} if ON_DEVICE else simulated_driver(machine.vendor)
    return Victim("bare", machine.begin_other("env", *(f"{name}={value}" for name, value in world.items()), *command))


def answers(server: Victim) -> tuple[str, list[str]]:
    """Returns the server's address, and its answers."""
    address = server.hear().removeprefix("serving on ")
    return address, [ask(address, prompt) for prompt in PROMPTS]


def ask(address: str, prompt: str) -> str:
    with urllib.request.urlopen(f"{address}/generate?prompt={urllib.parse.quote(prompt)}", timeout=30) as answer:
        return str(answer.read().decode())


def suspend(machine: Machine, job: str, least: int) -> None:
    gone = machine.ask("checkpoint", job)
    assert (gone.code, gone.body["state"], gone.body["vram_after_bytes"]) == (0, "suspended", 0), gone.body
    assert gone.body["bytes"] >= least


def test_a_server_answers_after_the_restore_what_was_asked_before_it(machine: Machine) -> None:
    address, before = answers(machine.run("server", *SERVER, ready=False))
    assert before[0].startswith("The program") and len(set(before)) == len(PROMPTS)
    assert before == answers(bare(machine, *SERVER))[1]
    suspend(machine, "server", 64 << 20)
    with ThreadPoolExecutor(1) as asking:
        late: Future[str] = asking.submit(ask, address, PROMPTS[0])
        with pytest.raises(TimeoutError):
            late.result(SHORT)
        assert machine.ask("restore", "server").body["state"] == "running"
        assert late.result(20) == before[0]
    assert [ask(address, prompt) for prompt in PROMPTS] == before


@pytest.mark.skipif(not ON_DEVICE, reason="needs a real device and PyTorch: tests/gpu/device.sh OUT examples")
def test_training_goes_on_at_the_next_step(machine: Machine) -> None:
    assert importlib.util.find_spec("torch")
    job = machine.run("train", *TRAINING, ready=False)
    said = [line(job) for _ in range(100)]
    suspend(machine, "train", 64 << 20)
    assert machine.ask("restore", "train").body["state"] == "running"
    said += iter(partial(line, job), "")
    assert job.supervisor.wait(60) == 0
    assert said == list(iter(partial(line, bare(machine, *TRAINING)), ""))
    assert said[-1].startswith("digest ")


def line(job: Victim) -> str:
    """Its next line, of many that come fast; empty at its end."""
    assert job.supervisor.stdout
    return job.supervisor.stdout.readline()
