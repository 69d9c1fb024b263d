"""All requests, and the one that a body on the socket is."""

from collections.abc import Mapping
from typing import Any, get_args

from gcr.api.partrequests import DropPartsRequest, KeepPartRequest, PartsRequest
from gcr.api.requests import (
    CheckpointRequest,
    CutRequest,
    DevicesRequest,
    EventsRequest,
    HandOverRequest,
    MigrateRequest,
    NoteRemovalRequest,
    PingRequest,
    PsRequest,
    RecoverRequest,
    RestoreRequest,
    SaveNowRequest,
    SaveSpansRequest,
    StatusRequest,
    StopRequest,
    SwapRequest,
)
from gcr.errors import UsageError

AnyRequest = (
    PingRequest
    | PsRequest
    | DevicesRequest
    | StatusRequest
    | EventsRequest
    | RecoverRequest
    | CheckpointRequest
    | RestoreRequest
    | SwapRequest
    | CutRequest
    | MigrateRequest
    | PartsRequest
    | KeepPartRequest
    | DropPartsRequest
    | SaveSpansRequest
    | SaveNowRequest
    | NoteRemovalRequest
    | StopRequest
    | HandOverRequest
)


def request_of(body: Mapping[str, Any]) -> AnyRequest:
    """Returns the request that a body is. Raises UsageError for an unknown command, and as `Request.from_json`."""
    op = body.get("op")
    kind: type[AnyRequest] | None = next((each for each in get_args(AnyRequest) if each.op == op), None)
    if kind is None:
        raise UsageError(f"no command {op!r}")
    return kind.from_json(body)
