"""`gcr hold`: to the program that starts it a job begins and ends; the job keeps its process and its memory."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

from machine import PATIENCE, VICTIMS, Machine, kill, until

COUNTS = """
import itertools, os, sys, time
sys.path.insert(0, {victims!r})
from cuda_calls import primary_context
context = primary_context()
for number in itertools.count():
    print(os.getpid(), number, flush=True)
    time.sleep(0.05)
"""


class Holder:
    """`gcr hold llm` with a program that counts aloud."""

    def __init__(self, machine: Machine, *flags: str, program: str = COUNTS) -> None:
        self.machine = machine
        words = [sys.executable, "-m", "gcr", *flags, "hold", *machine.world, "llm", "--"]
        words += [sys.executable, "-c", program.format(victims=str(VICTIMS))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, env=machine.env, stdout=pipe, stderr=pipe, text=True)

    def first(self) -> Sequence[int]:
        """Returns the program's pid, and the number that it comes to first in front of this holder."""
        assert self.process.stdout
        pid, number = self.process.stdout.readline().split()
        return int(pid), int(number)

    def ended(self) -> tuple[int, str]:
        out, error = self.process.communicate(timeout=2 * PATIENCE)
        return self.process.returncode, error or out


def test_a_job_begins_and_ends_for_its_holder_and_is_the_same_process_all_along(machine: Machine) -> None:
    holder = Holder(machine)
    pid, number = holder.first()
    assert number == 0
    assert machine.target("llm") == pid
    machine.leave()
    code, said = holder.ended()
    assert (code, "llm is suspended" in said) == (0, True), said

    holder = Holder(machine)
    again, number = holder.first()
    assert (again, machine.until_state("llm", "running")) == (pid, "running") and number > 0
    holder.process.send_signal(signal.SIGTERM)
    assert holder.ended()[0] == 0
    assert machine.until_state("llm", "suspended") == "suspended"

    holder = Holder(machine)
    assert holder.first()[0] == pid
    kill(pid)
    assert holder.ended()[0] == 137


def test_a_holder_that_is_refused_leaves_the_job_as_it_is(machine: Machine) -> None:
    holder = Holder(machine, "--json")
    until(lambda: machine.job("llm"), PATIENCE, "the job runs")
    pid = machine.target("llm")
    code, said = Holder(machine, "--json", program=COUNTS + "\n").ended()
    assert (code, json.loads(said)["error"]["code"]) == (125, "name_taken"), said
    machine.inject("checkpoint.quiesced fail")
    holder.process.send_signal(signal.SIGINT)
    code, said = holder.ended()
    assert (code, json.loads(said)["error"]["code"]) == (125, "injected_fault"), said
    assert (machine.target("llm"), machine.until_state("llm", "running")) == (pid, "running")
