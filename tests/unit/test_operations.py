"""Operations between gcr's processes: each is served, and has the fields that other versions know."""

import json
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from channels import declared

from gcr.checkpoints import operations as saves
from gcr.control_helper.__main__ import ControlService
from gcr.daemon.desk import SupervisorDesk
from gcr.errors import UsageError
from gcr.image_helper.service import ImageService
from gcr.memory.escrow import Escrow
from gcr.protocol.operations import coming, control, daemon, image, ring, snapshot, supervisor, worker
from gcr.protocol.operations.operation import Dispatcher, Done, Operation, Ready
from gcr.save_helper.service import SaveService
from gcr.supervisor.offer import Offer
from gcr.worker.holdings import Holdings
from gcr.worker.service import WorkerService

SERVED = [
    ((supervisor,), Offer(Escrow()).operations()),
    ((daemon,), SupervisorDesk(Mock(), Mock(), Mock()).operations()),
    ((control,), ControlService("no_such_backend")._operations),
    ((image,), ImageService().operations),
    ((saves,), SaveService().operations),
    (
        (worker, ring, coming, snapshot),
        WorkerService(Holdings(cast("Any", None), cast("Any", None), "GPU-1"), 0.0).operations,
    ),
]


@pytest.mark.parametrize(("tables", "served"), SERVED)
def test_each_operation_is_served_and_has_a_name_of_its_own(tables: Sequence[ModuleType], served: Dispatcher) -> None:
    assert {*served.handlers} == {*declared(*tables)}
    names = [each.op for each in declared(*tables)]
    assert len({*names}) == len(names) > 2


SAID = [
    (supervisor.Drop(7, None), {"pid": 7, "ids": None}),
    (supervisor.Put(7, (1, 2)), {"pid": 7, "ids": [1, 2]}),
    (supervisor.Unstage(7, 200, 100), {"pid": 7, "offset": 200, "limit": 100}),
    (supervisor.Note("x"), {"text": "x"}),
    (
        daemon.Register("t", ("sh", "-c"), "llm", 7, None, "nvidia", {"A": "b"}),
        {
            "token": "t",
            "argv": ["sh", "-c"],
            "name": "llm",
            "pid": 7,
            "backend": None,
            "simulate": "nvidia",
            "sim_environment": {"A": "b"},
            "parks": False,
            "leaves": False,
            "parked": None,
            "revives": None,
            "fills": None,
        },
    ),
    (
        daemon.Register(
            "t",
            ("sh",),
            parks=True,
            parked=daemon.ParkedIn("/store", "parked"),
            revives=9,
            fills=daemon.ParkedIn("/s", "x"),
        ),
        {
            "token": "t",
            "argv": ["sh"],
            "name": None,
            "pid": None,
            "backend": None,
            "simulate": None,
            "sim_environment": None,
            "parks": True,
            "leaves": False,
            "parked": {"store": "/store", "image": "parked"},
            "revives": 9,
            "fills": {"store": "/s", "image": "x"},
        },
    ),
    (supervisor.Park("/store", "parked", 0.5), {"store": "/store", "image": "parked", "stood_s": 0.5}),
    (supervisor.Unpark(), {}),
    (daemon.Started(7), {"pid": 7}),
    (daemon.Finished(137), {"code": 137}),
    (control.Restore(7, 1.5, {"GPU-1": "GPU-2"}), {"pid": 7, "deadline": 1.5, "devices": {"GPU-1": "GPU-2"}}),
    (control.Lock(7, 1.5), {"pid": 7, "deadline": 1.5}),
    (
        image.Begin("/store", True, "warm", None),
        {"store": "/store", "encrypted": True, "name": "warm", "max_bytes_per_s": None},
    ),
    (image.Parent(((7, 90, 1),)), {"processes": [[7, 90, 1]]}),
    (image.Baseline(7), {"pid": 7}),
    (image.Lend(7, 200, 300, True), {"pid": 7, "offset": 200, "total": 300, "partial": True}),
    (image.LendRing(7, 0, 3, 4096), {"pid": 7, "offset": 0, "total": 3, "slot_bytes": 4096}),
    (image.Take(7, "GPU-1", (1, 4096, 512)), {"pid": 7, "device": "GPU-1", "window": [1, 4096, 512]}),
    (image.Withdraw(), {}),
    (
        image.Write("llm", "nvidia", True, {"GPU-1": "H100"}, {7: image.ImagedAs(1, 2)}, 1.5, {"stop": 0.5}, 6),
        {
            "job": "llm",
            "backend": "nvidia",
            "simulated": True,
            "models": {"GPU-1": "H100"},
            "processes": {"7": {"stack": 1, "generation": 2}},
            "created": 1.5,
            "timings": {"stop": 0.5},
            "tree": 6,
        },
    ),
    (
        image.Open("/store", False, "warm", "ab01"),
        {"store": "/store", "encrypted": False, "name": "warm", "seal": "ab01"},
    ),
    (
        image.LendSlots("GPU-1", 4096, 200, 300),
        {"device": "GPU-1", "slot_bytes": 4096, "offset": 200, "total": 300},
    ),
    (image.Read(7, "GPU-1", 0, ((0, 512),)), {"pid": 7, "device": "GPU-1", "slot": 0, "windows": [[0, 512]]}),
    (image.Load(7), {"pid": 7}),
    (image.Loaded(7, 200, 100), {"pid": 7, "offset": 200, "limit": 100}),
    (image.ReadManifest("/store", False, "warm"), {"store": "/store", "encrypted": False, "name": "warm"}),
    (image.Sync("/store"), {"store": "/store"}),
    (
        image.Remove("/store", False, "warm", 1.5),
        {"store": "/store", "encrypted": False, "name": "warm", "created": 1.5},
    ),
    (
        worker.Adopt("7.1", ((5, 4096, 1, 0, 0, 0),), lent=True),
        {"hold": "7.1", "handles": [[5, 4096, 1, 0, 0, 0]], "lent": True},
    ),
    (
        worker.Reclaim(worker.CopyName("7.1", 9), "llm/7", "GPU-1", 0, 3),
        {"copy": {"hold": "7.1", "transaction": 9}, "owner": "llm/7", "left": "GPU-1", "offset": 0, "total": 3},
    ),
    (
        worker.RefillAhead(worker.CopyName("7.1", 9), 5, begins=True, deadline=1.5),
        {"copy": {"hold": "7.1", "transaction": 9}, "most": 5, "begins": True, "deadline": 1.5},
    ),
    (
        worker.Seal(
            worker.CopyName("7.1", 9),
            worker.ProcessFacts("llm", 7, 8, 9, {0: "GPU-1"}, ((5, 4096, 0, 4096, 1, 1),)),
            partial=False,
        ),
        {
            "copy": {"hold": "7.1", "transaction": 9},
            "about": {
                "job": "llm",
                "pid": 7,
                "start_time": 8,
                "transaction": 9,
                "ordinals": {"0": "GPU-1"},
                "mappings": [[5, 4096, 0, 4096, 1, 1]],
            },
            "partial": False,
        },
    ),
    (
        ring.Fill(worker.CopyName("7.1", 9), 1, ((4096, 512),), 1.5),
        {"copy": {"hold": "7.1", "transaction": 9}, "slot": 1, "windows": [[4096, 512]], "deadline": 1.5},
    ),
]


@pytest.mark.parametrize(("operation", "body"), SAID, ids=lambda each: getattr(each, "op", ""))
def test_a_request_has_the_fields_that_other_versions_know(operation: Operation[Any], body: dict[str, Any]) -> None:
    sent = json.loads(json.dumps({"op": operation.op, **operation.to_json()}))
    assert sent == {"op": operation.op, **body}
    told = {"more": 1, **sent}
    assert type(operation).from_json(told) == operation


@pytest.mark.parametrize("body", [{}, {"pid": "7", "ids": []}, {"pid": 7, "ids": [None]}, {"pid": 7, "ids": 1}])
def test_a_field_that_is_missing_or_of_another_type_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="put: "):
        supervisor.Put.from_json(body)


FACTS_OF_7 = {"job": "llm", "pid": 7, "start_time": 8, "transaction": 9, "ordinals": {}, "mappings": []}


@pytest.mark.parametrize(
    ("operation", "wrong"),
    [
        (worker.Adopt, {"handles": [[5, 4096, 1, 0, 0]]}),
        (worker.Seal, {"about": {}}),
        (worker.Seal, {"about": {**FACTS_OF_7, "ordinals": {"x": "GPU-1"}}}),
        (worker.Seal, {"about": {**FACTS_OF_7, "mappings": [[5, 4096]]}}),
    ],
)
def test_a_worker_refuses_facts_of_another_shape(operation: type[Operation[Any]], wrong: dict[str, Any]) -> None:
    right = {"hold": "7.1", "copy": {"hold": "7.1", "transaction": 9}, "about": FACTS_OF_7, "partial": False}
    assert operation.from_json({**right, "handles": []})
    with pytest.raises(UsageError, match=f"^{operation.op}: .*{next(iter(wrong))}"):
        operation.from_json({**right, **wrong})


@pytest.mark.parametrize(
    ("operation", "field", "value"),
    [
        (image.Take(7, "GPU-1", (0, 0, 512)), "window", [-1, 0, 512]),
        (image.Take(7, "GPU-1", (0, 0, 512)), "window", [0, 0]),
        (image.Read(7, "GPU-1", 0, ((0, 512),)), "pid", "7"),
        (image.Lend(7, 0, 1, False), "offset", -1),
        (image.Lend(7, 0, 1, False), "total", 0),
        (image.Loaded(7, 0, 100), "offset", -100),
        (image.LendSlots("GPU-1", 4096, 0, 1), "slot_bytes", 0),
        (image.Open("/store", False, "warm", "ab01"), "encrypted", "no"),
        (image.Parent(((7, 90, 1),)), "processes", [[7, 90]]),
        (image.Write("llm", "nvidia", True, {}, {7: image.ImagedAs(1, 2)}, 1.5, {}), "processes", {"x": {}}),
    ],
    ids=lambda each: getattr(each, "op", ""),
)
def test_an_image_helper_refuses_a_request_with_a_field_that_cannot_be(
    operation: Operation[Any], field: str, value: object
) -> None:
    told = json.loads(json.dumps({"op": operation.op, **operation.to_json()}))
    assert type(operation).from_json(told) == operation
    request = SimpleNamespace(json=lambda: {**told, field: value}, take_fds=list)
    with pytest.raises(UsageError, match=f"^{operation.op}: .*{field}"):
        ImageService().serve(cast("Any", request))
    del told[field]
    with pytest.raises(UsageError, match=f"^{operation.op}: .*{field}"):
        type(operation).from_json(told)


@pytest.mark.parametrize(
    ("done", "body"),
    [
        (Done(5), {"bytes": 5}),
        (Done(5, 0), {"bytes": 5, "total_bytes": 0}),
        (Done(5, 9, 2.5), {"bytes": 5, "total_bytes": 9, "link_bytes_per_s": 2.5}),
    ],
)
def test_progress_has_the_fields_that_other_versions_know(done: Done, body: dict[str, Any]) -> None:
    assert done.to_json() == body
    assert Ready.told({**body, "more": 1}) == done
