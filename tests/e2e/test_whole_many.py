"""Many stops and restores of one job: the same bytes, and nothing grows."""

import time
from operator import le
from statistics import median

import pytest
from filed import Filed, back, stop
from growth import descriptors
from machine import PATIENCE, Machine, until
from stored import store_of
from worlds import saved_whole, slowly

pytestmark = [pytest.mark.usefixtures("criu"), pytest.mark.timeout(1800), saved_whole()]

FEW, MANY, WINDOW = 3, 200, 20
TOGETHER = 20  # cycles
LEFT = 1 << 16  # bytes of a store without images
SLOWER = 1.3  # times, which a busy machine may be


@pytest.mark.parametrize("cycles", [FEW, slowly(MANY)])
def test_nothing_grows(machine: Machine, job: Filed, cycles: int) -> None:
    before, took, left = job.ask(), [], (0, 0, 0)
    for number in range(cycles):
        began = time.monotonic()
        stop(machine, f"image-{number}")
        back(machine, f"image-{number}")
        took.append(time.monotonic() - began)
        assert job.ask() == before, f"cycle {number}"
        assert machine.gcr("rm", f"image-{number}", "--store", str(store_of(machine))).code == 0
        assert sum(file.stat().st_size for file in store_of(machine).rglob("*") if file.is_file()) < LEFT
        if number == 0:
            await_spares(machine)
            left = counted(machine, job)
    await_spares(machine)
    until(lambda: all(map(le, counted(machine, job), left)) or None, PATIENCE, f"there is no more than {left}")
    if cycles == MANY:
        first, last = median(took[:WINDOW]), median(took[-WINDOW:])
        print(f"{first:.2f} s, then {last:.2f} s a cycle; {left}")
        assert last < SLOWER * first


@pytest.mark.slow
def test_two_jobs_come_back_at_a_time_again_and_again(machine: Machine, job: Filed) -> None:
    (machine.folder / "second").mkdir()
    second, store = Filed(machine, "second", folder=machine.folder / "second"), ("--store", str(store_of(machine)))
    second.ask("mixed 6 1000 2000000")
    both, before = (job, second), (job.ask(), second.ask())
    for number in range(TOGETHER):
        images = [f"{each.name}-{number}" for each in both]
        for each, image in zip(both, images, strict=True):
            gone = machine.gcr("checkpoint", each.name, "--image", image, "--stop", *store)
            assert gone.code == 0, gone.body
        going = [machine.begin("restore", "--image", image, *store) for image in images]
        assert [each.wait(PATIENCE) for each in going] == [0, 0], f"cycle {number}"
        assert (job.ask(), second.ask()) == before, f"cycle {number}"
        assert machine.gcr("rm", *images, *store).code == 0
    second.close()


def await_spares(machine: Machine) -> None:
    """Waits until the daemon has the helpers of the next stop, which have a connection each."""
    wanted = [2, 1]
    spares = ("gcr.image_helper", "gcr.criu_helper")
    until(lambda: [len(machine.children(each)) for each in spares] == wanted or None, PATIENCE, "spares are there")


def counted(machine: Machine, job: Filed) -> tuple[int, int, int]:
    """Returns the descriptors of the daemon and of the program, and the files of the machine."""
    return descriptors(machine.daemon()), descriptors(job.pid), len([*machine.folder.rglob("*")])
