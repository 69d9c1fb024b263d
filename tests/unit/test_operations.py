"""Operations between gcr's processes: the bytes on the socket, the server, and the owner of descriptors."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import Struct

from gcr.control import ControlMeans, ControlPhase, Refusal
from gcr.control_helper.__main__ import ControlService
from gcr.errors import PeerGone, RolledBack, UsageError
from gcr.memory.escrow import Escrow
from gcr.protocol.operations import control, supervisor, worker
from gcr.protocol.operations.operation import Answer, Dispatcher, Nothing, Operation, ask
from gcr.supervisor.offer import Offer
from gcr.worker.holdings import Holdings
from gcr.worker.service import WorkerService


def declared(table: ModuleType) -> list[type[Operation[Any]]]:
    """Returns the operations of a module; a class without a name on the socket is a base of others."""
    found = [each for each in vars(table).values() if isinstance(each, type) and issubclass(each, Operation)]
    return [each for each in found if hasattr(each, "op") and each is not Operation]


SERVED = [
    (supervisor, Offer(Escrow()).operations()),
    (control, ControlService("no_such_backend")._operations),
    (worker, WorkerService(Holdings(cast("Any", None), cast("Any", None), "GPU-1"), 0.0).operations),
]


@pytest.mark.parametrize(("table", "served"), SERVED, ids=lambda each: getattr(each, "__name__", ""))
def test_each_operation_is_served_and_has_a_name_of_its_own(table: ModuleType, served: Dispatcher) -> None:
    assert {*served.handlers} == {*declared(table)}
    names = [each.op for each in declared(table)]
    assert len({*names}) == len(names) > 8


SAID = [
    (supervisor.Drop(7, None), {"pid": 7, "ids": None}),
    (supervisor.Put(7, (1, 2)), {"pid": 7, "ids": [1, 2]}),
    (supervisor.Unstage(7, 200, 100), {"pid": 7, "offset": 200, "limit": 100}),
    (supervisor.Note("x"), {"text": "x"}),
    (control.Restore(7, 1.5, {"GPU-1": "GPU-2"}), {"pid": 7, "deadline": 1.5, "devices": {"GPU-1": "GPU-2"}}),
    (control.Lock(7, 1.5), {"pid": 7, "deadline": 1.5}),
    (worker.Adopt("7.1", ((5, 4096, 1, 0, 0, 0),)), {"hold": "7.1", "handles": [[5, 4096, 1, 0, 0, 0]]}),
    (
        worker.Reclaim("7.1", "llm/7", "GPU-1", 0, 3),
        {"hold": "7.1", "owner": "llm/7", "left": "GPU-1", "offset": 0, "total": 3},
    ),
    (worker.Fill("7.1", (1, 4096, 512), 1.5), {"hold": "7.1", "window": [1, 4096, 512], "deadline": 1.5}),
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


class Peer:
    """The other end of a channel: the dispatcher is asked, and both bodies pass through JSON."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher, self.answer = dispatcher, cast("tuple[dict[str, Any], list[int]]", None)
        self.gone = False

    def call_json(self, op: str, body: Mapping[str, Any], fds: Sequence[int], **_how: object) -> Any:
        told = json.loads(json.dumps({"op": op, **body}))
        copies = [os.dup(fd) for fd in fds]
        self.dispatcher.serve(
            cast("Any", SimpleNamespace(json=lambda: told, take_fds=lambda: copies, reply_json=self.reply))
        )
        return self.answer

    def reply(self, body: Mapping[str, Any] | None, fds: Sequence[int]) -> None:
        if self.gone:
            raise PeerGone("the caller has left")
        self.answer = json.loads(json.dumps({"ok": True, **(body or {})})), [os.dup(fd) for fd in fds]


def asked(peer: Peer, operation: Operation[Any], fds: Sequence[int] = ()) -> tuple[Any, list[int]]:
    return ask(cast("Any", peer), operation, fds, timeout=1.0)


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_an_escrow_behind_a_socket_is_an_escrow() -> None:
    escrow = Escrow()
    peer, before = Peer(Offer(escrow).operations()), open_descriptors()
    pair = os.pipe()
    assert asked(peer, supervisor.Put(7, (5, 6)), pair) == (Nothing(), [])
    assert asked(peer, supervisor.Ids(7))[0].ids == (5, 6)
    _, (copy,) = asked(peer, supervisor.Take(7, (6,)))
    assert os.fstat(copy).st_ino == os.fstat(pair[1]).st_ino
    asked(peer, supervisor.Stage(7, 0), pair)
    _, staged = asked(peer, supervisor.Unstage(7, 1, 9))
    assert len(staged) == 1
    asked(peer, supervisor.Note("decided"))
    assert asked(peer, supervisor.Noted())[0].text == "decided"
    asked(peer, supervisor.Drop(7, (5,)))
    assert asked(peer, supervisor.Ids(7))[0].ids == (6,)
    asked(peer, supervisor.Forget(7))
    for fd in (copy, *staged, *pair):
        os.close(fd)
    assert open_descriptors() == before


def test_facts_of_a_driver_cross_the_socket() -> None:
    view = control.Inspected(ControlPhase.LOCKED, {"GPU-1": 3}, (Refusal("nccl", "why"),))
    answers: dict[type[Operation[Any]], Struct] = {
        control.Inspect: view,
        control.Holders: control.HoldersFound({4711: 9}),
        control.Means: control.MeansUsed(ControlMeans.AGENT),
    }
    told = {kind: lambda _asked, _fds, _request, found=found: Answer(found) for kind, found in answers.items()}
    peer = Peer(Dispatcher("a helper", cast("Any", told)))
    assert asked(peer, control.Inspect(7))[0] == view
    assert asked(peer, control.Holders("GPU-1"))[0].holders == {4711: 9}
    assert asked(peer, control.Means())[0].means is ControlMeans.AGENT


@pytest.mark.parametrize("name", ["steal", None, 3])
def test_an_operation_that_nobody_declared_is_refused(name: object) -> None:
    request = SimpleNamespace(json=lambda: {"op": name}, take_fds=list)
    with pytest.raises(UsageError, match="a supervisor knows no"):
        Offer(Escrow()).operations().serve(cast("Any", request))


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_descriptors_are_closed_once_unless_they_are_kept(keeps: bool, gone: bool) -> None:
    kept: list[int] = []

    def keep(_asked: object, fds: list[int], _request: object) -> Answer:
        if keeps:
            kept.extend(fds)
            fds.clear()
        return Answer(fds=kept if keeps else [os.dup(0)], kept=keeps)

    peer, before = Peer(Dispatcher("a helper", {supervisor.Take: keep})), open_descriptors()
    peer.gone = gone
    given: list[int] = []
    try:
        given = asked(peer, supervisor.Take(7, ()), [0])[1]
    except PeerGone:
        assert gone
    for fd in given:
        os.close(fd)
    assert open_descriptors() == before + len(kept)
    for fd in kept:
        os.close(fd)


def test_an_answer_of_another_shape_is_an_error_and_its_descriptors_are_closed() -> None:
    peer = Peer(
        Dispatcher("a helper", {supervisor.Ids: lambda *_: Answer(control.MeansUsed(ControlMeans.AGENT), [0], True)})
    )
    before = open_descriptors()
    with pytest.raises(RolledBack, match="the answer of ids"):
        asked(peer, supervisor.Ids(7))
    assert open_descriptors() == before
