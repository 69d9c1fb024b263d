"""Two hundred stops and restores of one job: the same bytes, and nothing grows."""

import time
from pathlib import Path
from statistics import median

import pytest
from filed import Filed, back, stop
from machine import Machine
from stored import store_of
from worlds import SLOW

pytestmark = [pytest.mark.usefixtures("criu"), SLOW, pytest.mark.timeout(1800)]

CYCLES, WINDOW = 200, 20
LEFT = 1 << 16  # bytes of a store without images
SLOWER = 1.3  # times, which a busy machine may be


def test_nothing_grows(machine: Machine, job: Filed) -> None:
    before, took, open_files = job.ask(), [], []
    for number in range(CYCLES):
        began = time.monotonic()
        stop(machine, f"image-{number}")
        back(machine, f"image-{number}")
        took.append(time.monotonic() - began)
        assert job.ask() == before, f"cycle {number}"
        open_files.append((descriptors(daemon(machine)), descriptors(job.pid)))
        assert machine.gcr("rm", f"image-{number}", "--store", str(store_of(machine))).code == 0
        assert sum(file.stat().st_size for file in store_of(machine).rglob("*") if file.is_file()) < LEFT
    first, last = median(took[:WINDOW]), median(took[-WINDOW:])
    print(f"{first:.2f} s, then {last:.2f} s a cycle; {open_files[1]}, {open_files[-1]}")
    assert last < SLOWER * first
    assert open_files[-1] <= open_files[1]


def daemon(machine: Machine) -> int:
    (pid,) = machine.children("gcr.daemon")
    return pid


def descriptors(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])
