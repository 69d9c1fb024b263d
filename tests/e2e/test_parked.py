"""A checkpoint in place on AMD: the processes end, `gcr run` stays, and `gcr restore` makes them again under it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from filed import Filed
from machine import Machine, alive
from worlds import AMD

from gcr import schemas

pytestmark = [
    pytest.mark.usefixtures("criu"),
    pytest.mark.parametrize("machine", [AMD], indirect=True, ids=lambda world: world.name),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="/dev/fuse is not there to stand for /dev/kfd"),
]

WORKER = 16 << 20  # bytes on the device: a worker of gcr's stays warm


def park(machine: Machine) -> dict[str, object]:
    """The job is suspended as a whole: nothing is on its device, and no process of it is left."""
    gone = machine.gcr("checkpoint", "llm")
    assert gone.code == 0, (gone.body, gone.stderr)
    jsonschema.Draft202012Validator(schemas.load("checkpoint")).validate(gone.body)
    assert (gone.body["state"], gone.body["vram_after_bytes"]) == ("suspended", 0)
    assert "image" not in gone.body
    return gone.body


def places(machine: Machine) -> list[Path]:
    """Returns the private places of this machine's jobs: others' tests have theirs in the same folder."""
    ids = {path.name.split(".")[1] for path in (machine.folder / "state/gcr/jobs").glob("llm.*.json")}
    return [path for each in ids for path in Path("/dev/shm").glob(f"gcr-parked-llm-{each}-*")]


@pytest.fixture(autouse=True)
def nothing_left(machine: Machine) -> Iterator[None]:
    """Removes the places of jobs that the end of the test leaves parked."""
    yield
    for place in places(machine):
        shutil.rmtree(place)


def test_a_job_leaves_in_place_and_comes_back_under_its_parent_as_it_was_time_and_again(
    machine: Machine, job: Filed
) -> None:
    before, addresses = job.ask(), job.ask("address")
    for _ in range(3):
        park(machine)
        row = machine.job("llm")
        assert row
        assert (row["state"], row["processes"]) == ("suspended", [])
        assert not alive(job.pid)
        assert machine.used() == WORKER
        assert machine.gcr("images").body["images"] == []
        machine.come_back()
        assert (job.ask(), job.ask("address")) == (before, addresses)
        row = machine.job("llm")
        assert row
        assert row["pid"] == job.pid
        assert places(machine) == []
