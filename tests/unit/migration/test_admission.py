"""What differs between two nodes, or is missing at one, is refused by name before anything is touched."""

from typing import Any

import pytest
from msgspec.structs import replace

from gcr.api.migrations import JobFacts, NodeFacts, Place, World
from gcr.errors import GcrError, NameTaken, NoRoom, WrongDevice
from gcr.imageerrors import FilesChanged
from gcr.migration.admission import admit
from gcr.migrationerrors import CannotMigrate

GIB = 1 << 30
JOB = JobFacts(state="running", world=World("nvidia"), pids=(7,), devices={"A0": 4 * GIB}, host_bytes=GIB)


def node(name: str, *models: str, **more: Any) -> NodeFacts:
    devices = tuple(Place(f"{name}{number}", model, 8 * GIB) for number, model in enumerate(models))
    facts = {
        "kind": {"gcr": "1", "daemon's socket": "/run/s"},
        "store": "/store",
        "store_free_bytes": 100 * GIB,
        "encrypted": False,
        "jobs": (),
        "devices": devices,
        "drivers": {"driver": "driver 580.1"},
        "lacks": (),
    }
    return NodeFacts(**{**facts, **more})


SOURCE, TARGET = node("A", "H200", "H200"), node("B", "H200", "H200")


def test_a_device_of_the_same_model_takes_the_place():
    assert admit("llm", JOB, SOURCE, TARGET, {}) == {"A0": "B0"}
    assert admit("llm", JOB, SOURCE, TARGET, {"0": "1"}) == {"A0": "B1"}
    assert admit("llm", JOB, SOURCE, node("B", "L4", "H200"), {}) == {"A0": "B1"}


def test_a_node_with_the_same_devices_keeps_them():
    assert admit("llm", JOB, SOURCE, node("A", "H200"), {}) == {"A0": "A0"}


@pytest.mark.parametrize(
    ("target", "error", "named"),
    [
        (replace(TARGET, jobs=("llm",)), NameTaken, "llm"),
        (replace(TARGET, kind={**TARGET.kind, "gcr": "2"}), CannotMigrate, "gcr is 1"),
        (replace(TARGET, kind={**TARGET.kind, "daemon's socket": "/x"}), CannotMigrate, "/run/s at the source and /x"),
        (replace(TARGET, drivers={"driver": "driver 590.2"}), CannotMigrate, "580.1 at the source and driver 590.2"),
        (replace(TARGET, drivers={}), CannotMigrate, "missing at the target"),
        (replace(TARGET, lacks=("no program criu",)), CannotMigrate, "no program criu"),
        (replace(TARGET, encrypted=True), CannotMigrate, "encrypted"),
        (replace(TARGET, missing=("/data/model: it is gone",)), FilesChanged, "/data/model"),
        (replace(TARGET, store_free_bytes=5 * GIB), NoRoom, "store of the target"),
        (node("B", "L4"), WrongDevice, "A0"),
        (replace(TARGET, devices=(Place("B0", "H200", 3 * GIB),)), NoRoom, "B0"),
    ],
)
def test_what_is_in_the_way_is_named(target: NodeFacts, error: type[GcrError], named: str):
    with pytest.raises(error) as caught:
        admit("llm", JOB, SOURCE, target, {})
    assert named in caught.value.message
    assert caught.value.exit == 3


def test_devices_that_the_job_does_not_use_are_refused():
    with pytest.raises(WrongDevice):
        admit("llm", JOB, SOURCE, TARGET, {"1": "0"})
    with pytest.raises(WrongDevice):
        admit("llm", JOB, SOURCE, TARGET, {"0": "7"})
