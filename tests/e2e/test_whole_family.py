"""Stopped jobs of several processes, their parents after the restore, and stores that are encrypted or elsewhere."""

import secrets
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from filed import Filed, back, refused, stop
from machine import PATIENCE, Machine, alive, until
from stored import store_of
from worlds import ASCEND

pytestmark = pytest.mark.usefixtures("criu")

COUNT = "import time; n = 0\nwhile True: n += 1; open('count.{}', 'r+').write(f'{{n:9}}'); time.sleep(0.01)"
CHILDREN = 3
LENDER_LOOKS_S = 0.5  # shim/src/core/lending.cpp


@pytest.mark.parametrize("machine", [ASCEND], indirect=True, ids=lambda world: world.name)
def test_a_job_whose_context_stays_on_its_device_is_refused(machine: Machine, job: Filed) -> None:
    before = job.ask()
    assert refused(machine, "night") == (3, "unsupported_state")
    assert job.ask() == before


def test_children_without_a_device_come_along(machine: Machine) -> None:
    counts = [machine.folder / f"count.{number}" for number in range(CHILDREN)]
    for number, count in enumerate(counts):
        count.write_text(f"{0:9}")
        (machine.folder / f"count{number}.py").write_text(COUNT.format(number))
    begin = " ".join(f"{sys.executable} count{number}.py &" for number in range(CHILDREN))
    job = Filed(machine, first=begin)
    before = job.ask()
    moves(counts)
    stop(machine, "night")
    at_the_end = [int(count.read_text()) for count in counts]
    back(machine, "night")
    moves(counts)
    assert all(int(count.read_text()) > last for count, last in zip(counts, at_the_end, strict=True))
    assert job.ask() == before
    job.close()


@pytest.mark.parametrize("calls", [(), ("--legacy",)], ids=["descriptors", "legacy"])
def test_processes_that_share_memory_come_back_together_and_share_more(
    machine: Machine, calls: tuple[str, ...]
) -> None:
    job = Filed(machine, program=("ring_victim.py", "3", *calls))
    assert job.ask("round") == "2"
    for turn in range(2):
        stop(machine, f"night{turn}")
        back(machine, f"night{turn}")
        assert job.ask("round") == str(turn * 2 + 3)
        assert job.ask(f"renew {turn}") == str(turn * 2 + 4)
    assert job.ask("free 0") == "ok"
    time.sleep(
        2 * LENDER_LOOKS_S
    )  # the owner keeps it: its holder is another process to the kernel, and no other program
    stop(machine, "last")
    back(machine, "last")
    assert job.ask() == "6"
    job.close()


def moves(counts: list[Path]) -> None:
    """Waits until each child has counted on."""
    before = [count.read_text() for count in counts]
    until(lambda: all(a != b.read_text() for a, b in zip(before, counts, strict=True)) or None, PATIENCE, "they count")


def test_its_new_parent_returns_its_code_and_passes_signals_on(machine: Machine, job: Filed) -> None:
    before = job.ask()
    stop(machine, "night")
    parent = machine.begin("restore", "--image", "night", "--store", str(store_of(machine)), "--attach")
    machine.until_state("llm", "running")
    assert job.ask() == before
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(PATIENCE) == 128 + signal.SIGTERM
    until(lambda: machine.job("llm") is None or None, PATIENCE, "the job is forgotten")


def test_the_output_of_a_detached_job_goes_to_a_parent_in_the_foreground(machine: Machine) -> None:
    job = Filed(machine, first="while sleep 0.05 && echo said; do :; done &")
    stop(machine, "night")
    parent = machine.begin("restore", "--image", "night", "--store", str(store_of(machine)), "--attach")
    assert parent.stdout
    assert "said\n" in iter(parent.stdout.readline, "")
    parent.terminate()
    assert parent.wait(PATIENCE) == 128 + signal.SIGTERM
    job.close()


def test_it_comes_back_from_a_copy_of_an_encrypted_image_on_another_device(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    machine = Machine(tmp_path, devices=2)
    path, elsewhere = tmp_path / "key", f"file://{tmp_path}/elsewhere"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    job, key = Filed(machine), ("--key-file", str(path))
    job.ask("mixed 6 1000 2000000")
    before = job.ask()
    stop(machine, "night", *key)
    for words in (("push", "night", elsewhere), ("rm", "night"), ("pull", "night", elsewhere)):
        done = machine.gcr(*words, "--store", str(store_of(machine)), *key)
        assert done.code == 0, done.body
    moved = back(machine, "night", "--device", "0=1", *key)["moved"]
    assert len(moved) == 1 and [*moved] != [*moved.values()]
    row = machine.job("llm")
    assert row
    assert {each["device"] for each in row["processes"]} == {*moved.values()}
    assert job.ask() == before
    assert alive(job.pid)
    job.close()
    machine.close()


MAKE = "import ctypes, sys; sys.exit(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def another_machine(machine: Machine) -> None:
    """Puts a machine with other devices, two of them, in the place of the simulated one."""
    machine.gcr("daemon", "stop")
    shutil.rmtree(machine.simulated)
    machine.bare("env", "GCR_SIM_MACHINE=7", "GCR_SIM_DEVICES=2", sys.executable, "-c", MAKE)


def devices_of(machine: Machine) -> list[str]:
    row = machine.job("llm")
    assert row
    return [each["device"] for each in row["processes"]]


def test_a_job_comes_back_on_another_machine_and_leaves_that_one_too(machine: Machine, job: Filed) -> None:
    """No device of it has the UUID of the one that the job has left."""
    before, addresses, left = job.ask(), job.ask("address"), devices_of(machine)
    stop(machine, "night")
    another_machine(machine)
    moved = back(machine, "night")["moved"]
    assert isinstance(moved, dict)
    assert [*moved] == left
    assert devices_of(machine) == [*moved.values()] != left
    assert (job.ask(), job.ask("address")) == (before, addresses)
    gone = machine.gcr("checkpoint", "llm")
    assert (gone.code, gone.body["vram_after_bytes"]) == (0, 0), gone.body
    machine.come_back()
    stop(machine, "morning")
    back(machine, "morning", "--device", "0=1")
    assert (job.ask(), job.ask("address")) == (before, addresses)


def test_a_move_on_another_machine_counts_from_the_device_that_takes_the_place(machine: Machine, job: Filed) -> None:
    before = job.ask()
    stop(machine, "night")
    another_machine(machine)
    moved = back(machine, "night", "--device", "0=1")["moved"]
    assert isinstance(moved, dict)
    assert [each[-4:] for each in moved.values()] == ["0701"]
    assert job.ask() == before
