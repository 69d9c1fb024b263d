"""The decision on a job: the record that a suspension writes, and its text.

{"digest": "<blake2b of the record's JSON>", "record": {…}}
"""

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Self

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from gcr.errors import UsageError
from gcr.processes import ProcessIdentity

DATA_ONLY, CONTEXT_LATER = "data_only", "context_later"
KINDS = ("checkpoint", "driver", DATA_ONLY, CONTEXT_LATER, "restored")
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError)
JOB_OR_PID = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z|[0-9]+\Z")  # a job, or a pid for a process not started by gcr


class ProcessDecision(Struct, frozen=True):
    """One process of the job. By device (UUID): `bytes` of its data, `ballast` the driver needs for itself."""

    pid: int
    start_time: int
    bytes: Mapping[str, int]
    ballast: Mapping[str, int]
    copied_out: bool = False  # by its own agent, strategy `copyout`
    now: Mapping[str, str] = field(default_factory=dict)  # other devices where its control state is; see placement.py
    tried: Mapping[str, str] | None = None  # those where a restore that was begun may have brought it
    stack: int = 0  # see ProcessIdentity
    waits: bool = False  # it had made no call of a driver
    imaged: int = 0  # its pid in the tables of its image, where that is another one; see contained.py
    shared_as: int = 0  # the random name under which others hold memory of it; 0 where none does
    lent_to: tuple[int, ...] = ()  # pids of these others

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        return cls(**{**body, "lent_to": tuple(body.get("lent_to", ()))})


class Unreturned(Struct, frozen=True):
    """A process that its driver did not give back. `given_up`: it is to be ended, and never to come back."""

    pid: int
    given_up: bool = False


class KeptImage(Struct, frozen=True):
    """The image that alone has a job's bytes, and its store, by its whole path. Both are empty if it is unknown.

    user: uid and gid of another user for whom it was written, and who can read it; None: the daemon's own.
    """

    store: str
    name: str
    encrypted: bool = False
    user: tuple[int, int] | None = None


class Decided(Struct, frozen=True):
    """The decision itself: on which job, by which transaction, and about which processes.

    `kind`: `context_later` means `data_only`, and contexts leave once another program needs the room. `restored` means
    that the job is to run again, and its gates are still opening. `decided_at`: seconds since the epoch.
    """

    job: str
    transaction: int
    kind: str
    decided_at: float
    processes: tuple[ProcessDecision, ...]


class DecisionRecord(Decided, frozen=True):
    """The job is suspended from here on. Raises UsageError for a bad name.

    `environment`: what leads a worker to the job's (simulated) driver.
    `image`: where its bytes are, if they are in no host memory.
    `devices`: those of the machine, by UUID and model, of a job that another machine may bring back.
    `unreturned`: those that the driver did not give back in a restore that failed.
    `away`: the job's token while its agents and supervisor stay away, for a container's runtime to save them.
    `cut`: the id of the cut over several nodes by which it was suspended; empty without one.
    """

    backend: str
    simulated: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    image: KeptImage | None = None
    devices: tuple[tuple[str, str], ...] = ()
    away: str = ""
    unreturned: tuple[Unreturned, ...] = ()
    cut: str = ""

    @property
    def data_only(self) -> bool:
        """Returns whether the driver's contexts are on the devices."""
        return self.kind in (DATA_ONLY, CONTEXT_LATER)

    @property
    def given_up(self) -> frozenset[int]:
        """Returns the pids of processes that are to be ended, and never to come back."""
        return frozenset(each.pid for each in self.unreturned if each.given_up)

    def noting(self, found: Unreturned) -> Self:
        """Returns the record with what is known of a process that did not come back."""
        former = {each.pid: each for each in self.unreturned}
        before = former.pop(found.pid, found)
        noted = Unreturned(found.pid, before.given_up or found.given_up)
        return replace(self, unreturned=(*former.values(), noted))

    @property
    def is_without_image(self) -> bool:
        """Returns whether the bytes are in an image alone, and it is not known in which."""
        return self.image is not None and not self.image.name

    @property
    def imaged(self) -> dict[int, int]:
        """Returns the pids in the tables of the image, by those of the processes."""
        return {each.pid: each.imaged or each.pid for each in self.processes}

    def about(self, process: ProcessIdentity) -> ProcessDecision | None:
        """Returns the part about this process. After an exec the process is another one."""
        named = ((each, ProcessIdentity(each.pid, each.start_time, each.stack)) for each in self.processes)
        return next((each for each, identity in named if identity.is_same(process)), None)

    def __post_init__(self) -> None:
        if not JOB_OR_PID.match(self.job) or self.kind not in KINDS:
            raise UsageError(f"no decision record for job {self.job!r}, kind {self.kind!r}")

    def is_about(self, process: ProcessIdentity) -> bool:
        """Returns True if it names this process."""
        return self.about(process) is not None

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or UsageError for what is no record."""
        kept = body.get("image")
        facts: dict[str, Any] = {"processes": tuple(ProcessDecision.from_json(each) for each in body["processes"])}
        if kept:
            user = kept.get("user")
            facts["image"] = KeptImage(**{**kept, "user": (user[0], user[1]) if user else None})
        facts["devices"] = tuple((uuid, model) for uuid, model in body.get("devices", ()))
        facts["unreturned"] = tuple(Unreturned(**each) for each in body.get("unreturned", ()))
        return cls(**{**body, **facts})


def text_of(record: DecisionRecord) -> bytes:
    """Returns the record as a file of the journal has it, with its digest."""
    body = to_builtins(record)
    return json.dumps({"digest": _digest(body), "record": body}, indent=1).encode()


def of_text(text: bytes) -> DecisionRecord:
    """Reads the text of `text_of`. Raises one of UNREADABLE for text that does not read back."""
    body = json.loads(text)
    if body["digest"] != _digest(body["record"]):
        raise ValueError("the digest is wrong")
    return DecisionRecord.from_json(body["record"])


def record_of(text: bytes) -> DecisionRecord | None:
    """Does as `of_text`; returns None for text that does not read back."""
    try:
        return of_text(text)
    except UNREADABLE:
        return None


def _digest(body: object) -> str:
    return blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=32, person=b"gcr journal").hexdigest()
