"""Operations that cross a socket: their answers, their descriptors, and answers of another shape."""

import json
import os
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from channels import declared, open_descriptors
from msgspec import Struct

from gcr.control import ControlMeans, ControlPhase, Refusal
from gcr.errors import PeerGone, RolledBack, UsageError
from gcr.image_helper.service import ImageService
from gcr.memory.escrow import Escrow
from gcr.peers.image import ImagePeer, StorePlace
from gcr.peers.worker_memory.copies import WorkerCopies
from gcr.processes import ProcessIdentity
from gcr.protocol.batches import BATCH
from gcr.protocol.operations import control, image, supervisor, worker
from gcr.protocol.operations.operation import Answer, Dispatcher, Done, Nothing, Operation, ask
from gcr.protocol.seqpacket import close_all
from gcr.supervisor.offer import Offer


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


WRITTEN = image.Written(
    parent="cold", bytes_total=3, bytes_changed=None, bytes_zero=1, bytes_written=2, parent_refused="why"
)
FACTS = image.Write("llm", "nvidia", True, {"GPU-1": "H100"}, {7: image.ImagedAs(1, 2)}, 1.5, {"stop": 0.5})


class Told:
    """A helper, an image helper if not said otherwise, that answers, keeps the requests, and tells of its progress."""

    silent = False

    def __init__(self, *answers: Answer, progress: Mapping[str, Any] | None = None, kinds: ModuleType = image) -> None:
        self.left, self.requests, self.progress, self.heard = [*answers], cast("list[Any]", []), progress, Mock()
        self.peer = Peer(Dispatcher("a helper", dict.fromkeys(declared(kinds), self.carry_out)))

    def carry_out(self, asked: Any, fds: list[int], _request: object) -> Answer:
        self.requests.append((asked, len(fds)))
        return self.left.pop(0) if self.left else Answer()

    def call_json(self, op: str, body: Mapping[str, Any], fds: Sequence[int], **how: Any) -> Any:
        if self.progress is not None and how["on_progress"]:
            how["on_progress"](self.progress)
        return self.peer.call_json(op, body, fds)

    @property
    def helper(self) -> ImagePeer:
        return ImagePeer(cast("Any", self), 4711)


@pytest.mark.parametrize(
    ("call", "request_", "answer", "returned"),
    [
        (lambda h, s, _p: h.begin(s, "warm", 1e6, 1.0), image.Begin("/s", True, "warm", 1e6), image.Free(9), 9),
        (
            lambda h, _s, p: h.parent([ProcessIdentity(7, 90, 1)], 1.0, p),
            image.Parent(((7, 90, 1),)),
            image.ParentFound("cold", "why"),
            ("cold", "why"),
        ),
        (lambda h, _s, p: h.take(7, "G", (1, 2, 3), 1.0, p), image.Take(7, "G", (1, 2, 3)), None, None),
        (lambda h, _s, _p: h.withdraw(1.0), image.Withdraw(), None, None),
        (lambda h, s, _p: h.remove(s, "warm", 1.5, 1.0), image.Remove("/s", True, "warm", 1.5), None, None),
        (lambda h, _s, p: h.write(FACTS, 1.0, p), FACTS, WRITTEN, WRITTEN),
        (lambda h, s, _p: h.sync(s, 1.0), image.Sync("/s"), None, None),
        (lambda h, _s, p: h.read(7, "G", 1, [(2, 3)], 1.0, p), image.Read(7, "G", 1, ((2, 3),)), None, None),
    ],
    ids=lambda each: getattr(each, "op", ""),
)
def test_what_the_daemon_asks_of_an_image_helper_and_what_it_answers(
    call: Any, request_: object, answer: Struct | None, returned: object
) -> None:
    told, before = Told(Answer(answer)), open_descriptors()
    assert call(told.helper, StorePlace("/s", [0]), Mock()) == returned
    asked, fds = told.requests[0]
    assert (asked, fds) == (request_, isinstance(request_, image.InStore))
    assert open_descriptors() == before


def test_descriptors_lent_to_an_image_helper_come_in_messages_that_say_their_place() -> None:
    told = Told()
    told.helper.lend(7, [0] * (BATCH + 1), True)
    told.helper.lend_ring(8, [0], 4096)
    told.helper.lend_slots("G", 4096, [0] * (BATCH + 1))
    assert told.requests == [
        (image.Lend(7, 0, BATCH + 1, True), BATCH),
        (image.Lend(7, BATCH, BATCH + 1, True), 1),
        (image.LendRing(8, 0, 1, 4096), 1),
        (image.LendSlots("G", 4096, 0, BATCH + 1), BATCH),
        (image.LendSlots("G", 4096, BATCH, BATCH + 1), 1),
    ]


def test_descriptors_of_a_loaded_process_are_asked_for_until_all_have_come() -> None:
    told = Told(Answer(image.LoadedCount(3)), Answer(fds=[0, 1], kept=True), Answer(fds=[2], kept=True))
    found = told.helper.load(7, 1.0, Mock())
    assert [os.fstat(fd).st_ino for fd in found] == [os.fstat(fd).st_ino for fd in (0, 1, 2)]
    assert [asked for asked, _ in told.requests[:3]] == [
        image.Load(7),
        image.Loaded(7, 0, BATCH),
        image.Loaded(7, 2, BATCH),
    ]
    close_all(found)


def test_a_baseline_comes_as_a_descriptor_of_the_callers() -> None:
    told = Told(Answer(fds=[0], kept=True))
    fd = told.helper.baseline(7)
    assert (told.requests, os.fstat(fd).st_ino) == ([(image.Baseline(7), 0)], os.fstat(0).st_ino)
    os.close(fd)


@pytest.mark.parametrize("asked", [image.Loaded(7, 0, 1), image.Load(7), image.Baseline(7)], ids=lambda each: each.op)
def test_an_image_helper_without_an_image_gives_no_descriptors(asked: Operation[Any]) -> None:
    with pytest.raises(UsageError, match=r"no image is open|was not loaded|it is not known yet"):
        ImageService().serve(
            cast("Any", SimpleNamespace(json=lambda: {"op": asked.op, **asked.to_json()}, take_fds=list))
        )


def test_progress_is_typed_and_one_of_another_shape_ends_the_call() -> None:
    patience, listener, copy = Mock(), Mock(), worker.CopyName("7.1", 9)
    Told(progress={"bytes": 1, "total_bytes": 2, "more": 3}).helper.read(7, "G", 0, [(0, 1)], 1.0, patience)
    patience.heard.assert_called_once_with(Done(1, 2))
    told = Told(Answer(worker.Moved(5, 1.0)), kinds=worker, progress={"bytes": 1, "link_bytes_per_s": 2.5})
    assert WorkerCopies(cast("Any", told)).refill(copy, 1.0, listener) == worker.Moved(5, 1.0)
    listener.assert_called_once_with(Done(1, None, 2.5))
    for wrong in ({"total_bytes": 1}, {"bytes": "1"}, {"bytes": 1, "total_bytes": 0.5}):
        with pytest.raises(RolledBack, match="the progress of read: "):
            Told(progress=wrong).helper.read(7, "G", 0, [(0, 1)], 1.0, patience)


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
def test_an_undeclared_operation_is_refused(name: object) -> None:
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
