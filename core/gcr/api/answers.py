"""Answers: what the daemon tells the command line and the library, with the fields of the JSON on the socket.

Each answer is declared once for both ends. Sizes are bytes, times seconds, rates bytes per second; None is null.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from msgspec import UNSET, Struct, UnsetType, ValidationError, to_builtins
from msgspec.structs import force_setattr

from gcr.converting import convert
from gcr.errors import GcrError
from gcr.standstill.messages import Report


class Answer(Struct, frozen=True, kw_only=True):
    """An answer that no caller can change, its mappings included. A field that is UNSET is not in the JSON."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), dict):
                force_setattr(self, name, MappingProxyType(value))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope."""
        plain = to_builtins(self, enc_hook=dict)  # the hook is for the mappings
        found: dict[str, Any] = json.loads(json.dumps(plain))  # lists, and words that are not UTF-8 as they are
        return found

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Ignores fields that only a newer daemon knows. Raises GcrError for one that is missing or of another type."""
        try:
            return convert(document, cls)
        except ValidationError as error:
            raise GcrError(f"an answer that is no {cls.__name__}: {error}") from error


class Pong(Answer, frozen=True, kw_only=True):
    """The answer of a daemon that is asked for nothing."""

    pid: int
    version: str


class Ranks(Answer, frozen=True, kw_only=True):
    """The answer of a part of a cut that is led: its ranks by their pids, none after an admission.

    `changed_at` of each is on a clock that is at 0 with this answer.
    """

    ranks: tuple[Report, ...]


class Leaving(Answer, frozen=True, kw_only=True):
    """The answer of a daemon that ends."""

    pid: int


class WorkerInfo(Answer, frozen=True, kw_only=True):
    """A worker and its arena. `cold_s`: seconds that its start took. A speed is UNSET until it is measured."""

    device: str
    pid: int
    bytes: int
    pinned_bytes: int
    cold_s: float
    link_out_bytes_per_s: float | UnsetType = UNSET
    link_in_bytes_per_s: float | UnsetType = UNSET


class DaemonStatus(Answer, frozen=True, kw_only=True):
    """The answer of `status`. `jobs`: how many there are."""

    pid: int
    version: str
    arena_bytes: int
    arena_pinned_bytes: int
    jobs: int
    workers: tuple[WorkerInfo, ...]


class RecoveredJob(Answer, frozen=True, kw_only=True):
    """A job after a recovery: its states before and now, and the action that was taken."""

    job: str
    was: str
    now: str
    action: str


class UnrecoveredJob(Answer, frozen=True, kw_only=True):
    """A job that a recovery could not bring where it belongs. `error`: as in the answer of a command that fails."""

    job: str
    error: Mapping[str, Any]


class MovingJob(Answer, frozen=True, kw_only=True):
    """A migration that this node has a record of. `stage`: of the record · `source`, `target`: the nodes' names

    outcome: `settled`, where the job was brought back here; `under_way`, while its command lives; else `unsettled`
    command: settles it; after `settled` it ends what had arrived at the target · `error`: why it was not settled here
    """

    job: str
    id: str
    stage: str
    source: str
    target: str
    outcome: str
    command: str
    error: Mapping[str, Any] | None = None


class Recovered(Answer, frozen=True, kw_only=True):
    """The answer of `recover`: every job was tried, and every migration."""

    jobs: tuple[RecoveredJob, ...]
    failed: tuple[UnrecoveredJob, ...] = ()
    migrations: tuple[MovingJob, ...] = ()


class SpansSaved(Answer, frozen=True, kw_only=True):
    """The answer of `save_spans`. It comes with descriptors of segments of host memory, which hold the spans.

    The spans lie back to back, from the first byte of the first segment on. No process writes to a segment while its
    descriptor is open.

    sizes: bytes of each segment, in the order of the descriptors
    in_place_bytes: bytes that were read in place; the others were copied aside
    prepared_s, aside_s, safe_s, drained_s: seconds from the request until the process's memory was exported, until
    spans were copied aside, until those in place were read too, and until all were on the host
    """

    sizes: tuple[int, ...]
    in_place_bytes: int
    prepared_s: float
    aside_s: float
    safe_s: float
    drained_s: float
