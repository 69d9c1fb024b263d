"""Requests to the daemon: what they refuse, on either side of the socket, and what they look like on it."""

import json
from typing import Any

import pytest

from gcr.api.barriers import Barrier
from gcr.api.requests import (
    CheckpointRequest,
    CutRequest,
    HandOverRequest,
    NextJob,
    Request,
    RestoreRequest,
    SaveNowRequest,
    SaveSpansRequest,
    StopRequest,
    SwapRequest,
)
from gcr.daemon.worlds import backend_name
from gcr.errors import UsageError
from gcr.standstill.messages import Admission, Lead, Tier

IMAGE = {"target": "llm", "image": "warm"}
NAN = float("nan")

REFUSED: list[tuple[type[Request], dict[str, Any], str]] = [
    (CheckpointRequest, {"target": "Upper"}, "no job name"),
    (CheckpointRequest, {"target": "llm", "timeout": 0}, "no time in seconds"),
    (CheckpointRequest, {"target": "llm", "timeout": NAN}, "no time in seconds"),
    (CheckpointRequest, {"target": "llm", "timeout": 86401}, "no time in seconds"),
    (CheckpointRequest, {"target": "llm", "backend": "--help"}, "no name of a vendor"),
    (CheckpointRequest, {"target": "llm", "image": "No"}, "no name of an image"),
    (CheckpointRequest, {"target": "llm", "image": ""}, "no name of an image"),
    (CheckpointRequest, {"target": "llm", "store": "/store"}, "a store and its key"),
    (CheckpointRequest, {"target": "llm", "encrypted": True}, "a store and its key"),
    (CheckpointRequest, {"target": "llm", "live": True}, "for a checkpoint with an image"),
    (CheckpointRequest, {"target": "llm", "leave_running": True}, "for a checkpoint with an image"),
    (CheckpointRequest, {"target": "llm", "stop": True}, "for a checkpoint with an image"),
    (CheckpointRequest, {"target": "llm", "max_bytes_per_s": 9.0}, "for a checkpoint with an image"),
    (CheckpointRequest, {"target": "llm", "wait": "durable"}, "for a checkpoint with an image"),
    (CheckpointRequest, {**IMAGE, "context_later": True}, "choose one"),
    (CheckpointRequest, {**IMAGE, "wait": "soon"}, "nothing that can be waited for"),
    (CheckpointRequest, {**IMAGE, "max_bytes_per_s": 0.5}, "no rate"),
    (CheckpointRequest, {**IMAGE, "max_bytes_per_s": NAN}, "no rate"),
    (CheckpointRequest, {**IMAGE, "leave_running": True, "data_only": True}, "choose one"),
    (CheckpointRequest, {**IMAGE, "leave_running": True, "stop": True}, "choose one"),
    (RestoreRequest, {"target": "llm", "store": "/store"}, "a store and its key"),
    (RestoreRequest, {"target": "llm", "encrypted": True}, "a store and its key"),
    (RestoreRequest, {"target": "a b"}, "no job name"),
    (SwapRequest, {"out": "llm", "in": "No"}, "no job name"),
    (SwapRequest, {"out": "No", "in": "llm"}, "no job name"),
    (SwapRequest, {"out": "llm", "in": "bb", "timeout": -1}, "no time in seconds"),
    (SaveNowRequest, {"spans": ()}, "0 spans"),
    (SaveNowRequest, {"spans": ((4096, 1),) * ((1 << 20) + 1)}, "1048577 spans"),
    (SaveNowRequest, {"spans": ((4096, 0),)}, "no span of memory"),
    (SaveNowRequest, {"spans": ((-1, 2),)}, "no span of memory"),
    (SaveNowRequest, {"spans": ((4096, 1),), "in_place": (1,)}, "1 is the number of no span"),
    (SaveNowRequest, {"spans": ((4096, 1),), "in_place": (-1,)}, "-1 is the number of no span"),
    (SaveNowRequest, {"spans": ((8, 8), ((1 << 64) - 1, 2))}, "no span of memory"),
    (SaveSpansRequest, {"run": "r" * 201}, "201 characters"),
    (SaveSpansRequest, {"step": -1}, "step -1"),
]

NOT_SUCH: list[tuple[type[Request], dict[str, Any], str]] = [
    (CheckpointRequest, {}, "target"),
    (CheckpointRequest, {"target": 1.5}, "target"),
    (CheckpointRequest, {"target": True}, "target"),
    (CheckpointRequest, {"target": ["llm"]}, "target"),
    (CheckpointRequest, {"target": "llm", "data_only": 1}, "data_only"),
    (CheckpointRequest, {"target": "llm", "timeout": "5"}, "timeout"),
    (CheckpointRequest, {"target": "llm", "gently": True}, "gently"),
    (RestoreRequest, {"target": "llm", "live": True}, "live"),
    (RestoreRequest, {"target": "llm", "devices": {"0": 1}}, "str"),
    (RestoreRequest, {"target": "llm", "devices": ["0=1"]}, "devices"),
    (SwapRequest, {"out": "llm"}, "in"),
    (SwapRequest, {"out": "llm", "in": "bb", "back": "bb"}, "back"),
    (SaveNowRequest, {}, "spans"),
    (SaveNowRequest, {"spans": [[4096, 1, 2]]}, "spans"),
    (SaveNowRequest, {"spans": [[4096, 1]], "target": "llm"}, "target"),
    (SaveSpansRequest, {"target": "llm"}, "target"),
    (StopRequest, {"force": "yes"}, "force"),
    (HandOverRequest, {"version": "9.9"}, "wire"),
]


def _ids(values: list[tuple[type[Request], dict[str, Any], str]]) -> list[str]:
    return [f"{kind.op} {_beginning(body)}"[:200] for kind, body, _ in values]


def _beginning(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a body whose words are the same up to the 200th: a million spans take long to write down."""
    return {name: value[:100] if isinstance(value, tuple) else value for name, value in body.items()}


@pytest.mark.parametrize(("kind", "body", "told"), REFUSED, ids=_ids(REFUSED))
def test_what_makes_no_sense_is_refused_at_both_ends(kind: type[Request], body: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        kind.from_json({"op": kind.op, **body})
    with pytest.raises(UsageError, match=told):
        kind(**{("back" if name == "in" else name): value for name, value in body.items()})


@pytest.mark.parametrize(("kind", "body", "told"), NOT_SUCH, ids=_ids(NOT_SUCH))
def test_a_field_that_is_missing_unknown_or_of_another_type_is_named(
    kind: type[Request], body: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=f"{kind.op}: .*`.*{told}"):
        kind.from_json({"op": kind.op, **body})


REQUESTS = [
    CheckpointRequest(target="llm"),
    CheckpointRequest(target=4711, timeout=5, backend="nvidia", data_only=True),
    CheckpointRequest(target="llm", image="warm", store="/s", encrypted=True, wait="durable", live=True),
    CheckpointRequest(target="llm", image="warm", leave_running=True, paranoid=True, max_bytes_per_s=1e9),
    CheckpointRequest(target="llm", image="warm", stop=True),
    CheckpointRequest(target="llm", image="warm", container=True),
    RestoreRequest(target="llm", image="warm", container="{}"),
    RestoreRequest(target="llm", image="warm", store="/s", devices={"0": "1"}),
    RestoreRequest(target="llm", without=(4711, 4712)),
    SwapRequest(out="llm", back=4711, data_only=True, devices={"0": "1"}),
    SaveSpansRequest(timeout=9, run="train", step=9),
    SaveNowRequest(spans=((4096, 1), (1 << 47, 1 << 33))),
    SaveNowRequest(spans=((4096, 1), (8192, 1)), in_place=(1,), fills=False),
    CutRequest(id="0" * 32, barrier=Barrier.APART),
    CutRequest(id="0" * 32, lead=Lead(False, (Admission(Tier.WALK, 70, 3, 0, 16),), (((1 << 64) - 1, 7),))),
    StopRequest(force=True),
    HandOverRequest(version="9.9", wire=3),
    CheckpointRequest(target="llm", then=NextJob("bb", 5)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_is_the_same_behind_the_socket(request_: Request) -> None:
    body = json.loads(json.dumps({"op": request_.op, **request_.to_json()}))
    assert type(request_).from_json(body) == request_


@pytest.mark.parametrize(
    ("then", "more", "told"),
    [
        ({"job": "bb"}, IMAGE, "choose one"),
        ({"job": "../bb"}, {}, "no job name"),
        ({"job": "bb", "most_bytes": -1}, {}, "-1 is no number of bytes"),
        ({"job": "bb", "bytes": 1}, {}, "unknown field `bytes`"),
    ],
)
def test_a_job_that_cannot_come_in_next_is_refused(then: dict[str, Any], more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        CheckpointRequest.from_json({"target": "llm", "then": then, **more})


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"barrier": "still", "lead": {}}, "choose one"),
        ({"lead": {"admissions": [{"tier": 9, "rank": 1, "thread": 1, "signature": 0}]}}, "enum value 9"),
        ({"lead": {"admissions": [{"tier": 1, "rank": 1, "thread": 1, "signature": 0, "calls": 1 << 32}]}}, "calls"),
        ({"lead": {"furthest": [[-1, 1]]}}, "furthest"),
    ],
)
def test_an_order_to_ranks_is_checked_before_any_rank_hears_of_it(more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        CutRequest.from_json({"id": "0" * 32, **more})


def test_what_was_not_asked_for_is_not_sent_and_no_name_has_changed() -> None:
    assert CheckpointRequest(target="llm").to_json() == {"target": "llm"}
    assert SwapRequest(out="llm", back="bb", timeout=5).to_json() == {"out": "llm", "in": "bb", "timeout": 5}
    names = {"target", "timeout", "backend", "image", "store", "encrypted", "data_only", "wait", "live"}
    names |= {
        "context_later",
        "cut",
        "then",
        "resident",
        "leave_running",
        "stop",
        "processes",
        "container",
        "allow",
        "paranoid",
        "max_bytes_per_s",
    }
    assert set(CheckpointRequest.__struct_encode_fields__) == names
    assert set(RestoreRequest.__struct_encode_fields__) == (
        names & {"target", "timeout", "backend", "image", "cut"}
    ) | {
        "store",
        "encrypted",
        "devices",
        "revive",
        "without",
        "container",
    }


def test_the_halves_of_a_swap_have_what_concerns_them() -> None:
    swap = SwapRequest(out="llm", back="bb", timeout=9, backend="amd", data_only=True, devices={"0": "1"})
    assert swap.checkpoint() == CheckpointRequest(target="llm", timeout=9, backend="amd", data_only=True)
    assert swap.restore(4) == RestoreRequest(target="bb", timeout=4, backend="amd", devices={"0": "1"})


def test_a_command_between_versions_may_say_more() -> None:
    assert StopRequest.from_json({"op": "stop", "more": 1}) == StopRequest()
    assert HandOverRequest.from_json({"version": "9.9", "wire": 3, "more": 1}).version == "9.9"


@pytest.mark.parametrize("name", ["acme", "Acme.v2", "0-acme_x"])
def test_a_request_names_each_backend_that_the_daemon_knows(name: str) -> None:
    assert backend_name(name) == CheckpointRequest(target="llm", backend=name).backend
