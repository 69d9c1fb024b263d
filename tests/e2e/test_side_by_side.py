"""Several jobs on one device: each goes and comes back at its own time, and none is taken for another."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from machine import Machine, Victim
from worlds import AMD, AMD_QUIRKS, ASCEND_DATA, NOEXPORT, NVIDIA, at

JOBS, CYCLES = 3, 6
WAITED_FOR_OTHERS = 4.0  # seconds once it is decided; one that takes another's memory for its own waits five


@pytest.mark.parametrize(
    "machine",
    [at(NVIDIA), *(at(world, slow=True) for world in (AMD, NOEXPORT, AMD_QUIRKS, ASCEND_DATA))],
    indirect=True,
)
def test_jobs_swap_side_by_side(machine: Machine) -> None:
    machine.memory = 1 << 30
    jobs = [machine.told(f"job{number}", f"alloc {number + 2} 30000000", "alloc 4 1000") for number in range(JOBS)]
    contents = [job.ask() for job in jobs]
    with ThreadPoolExecutor(JOBS) as together:
        for each in [together.submit(swap_again_and_again, machine, job) for job in jobs]:
            each.result()
    assert [job.ask() for job in jobs] == contents


def swap_again_and_again(machine: Machine, job: Victim) -> None:
    for _ in range(CYCLES):
        gone = machine.ask("checkpoint", job.name, **machine.where.how)
        assert (gone.code, gone.body.get("state")) == (0, machine.where.suspended), gone.body
        assert gone.body["vram_after_bytes"] == 0 or machine.where.data_only, gone.body
        phases = gone.body["phases_s"]
        assert phases["vram_free"] - phases["decided"] < WAITED_FOR_OTHERS, gone.body
        back = machine.ask("restore", job.name)
        assert (back.code, back.body.get("state")) == (0, "running"), back.body
