"""Job events: what has happened to jobs, as the daemon remembers it and `gcr events --json` prints it.

One class a kind of event; `event` in the JSON is its name. Sizes are bytes, times seconds, rates bytes per second; None
is null. Texts that come from outside are cut to TEXT characters, since the daemon keeps thousands of events.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import field

from gcr.api.answers import Answer

SCHEMA = 1  # version of a line
TEXT = 500  # characters
IMAGES = 20  # names of images in one event


def now() -> str:
    """Returns this moment: ISO 8601, to the millisecond, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Event(Answer, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    """`seq`: its number among the events that the caller may see, from 1 on in each daemon. `time`: see `now`."""

    seq: int = 0
    time: str = field(default_factory=now)

    def line(self) -> dict[str, Any]:
        """Returns the object that a line of `gcr events --json` is."""
        return {"schema": SCHEMA, **self.to_json()}


class DaemonStarted(Event, frozen=True, kw_only=True):
    """The first event of a daemon: it does not know those of the daemon before."""

    pid: int
    version: str


class EventsMissed(Event, frozen=True, kw_only=True):
    """The daemon has forgotten this many events that the caller has not read. `seq`: of the last one."""

    count: int


class JobEvent(Event, frozen=True, kw_only=True):
    """An event of a job."""

    job: str


class JobRegistered(JobEvent, frozen=True, kw_only=True):
    """A job is under this daemon from now on. `uid`: of its owner."""

    simulated: bool
    uid: int


class JobEnded(JobEvent, frozen=True, kw_only=True):
    """Its program and all processes have ended. `state`: the job's at that time; `stopped`: it is in an image."""

    state: str


class JobReleased(JobEvent, frozen=True, kw_only=True):
    """A process that gcr did not start runs without gcr again."""


class SupervisorGone(JobEvent, frozen=True, kw_only=True):
    """The `gcr run` of the job has died; the daemon looks after the job."""


class JobRecovered(JobEvent, frozen=True, kw_only=True):
    """A command was cut short by a death, and the job was brought to a state of rest. `action`: how."""

    was: str
    state: str
    action: str


class ProcessAttached(JobEvent, frozen=True, kw_only=True):
    """A process of the job has connected to this daemon."""

    pid: int
    backend: str


class ProcessEnded(JobEvent, frozen=True, kw_only=True):
    """`state`: the state of the process when it ended."""

    pid: int
    state: str


class CommandEvent(JobEvent, frozen=True, kw_only=True):
    """A part of a checkpoint or a restore. `transaction`: the same in all events of one command.

    by: the caller: its uid, pid and command line
    """

    transaction: str
    by: str


class BegunEvent(CommandEvent, frozen=True, kw_only=True):
    """The command has its turn at the job."""

    image: str | None = None


class CheckpointBegun(BegunEvent, frozen=True, kw_only=True):
    """A checkpoint has begun."""


class RestoreBegun(BegunEvent, frozen=True, kw_only=True):
    """A restore has begun."""


class DoneEvent(CommandEvent, frozen=True, kw_only=True):
    """A command is done. `took_s`: from the request to the answer; `phases_s`: as in the report.

    copy_s, bytes_per_s: of the copy from or to the device · link_bytes_per_s: the device's link, once it is measured
    """

    state: str
    simulated: bool
    bytes: int
    took_s: float
    phases_s: Mapping[str, float]
    copy_s: float
    bytes_per_s: float | None
    link_bytes_per_s: float | None

    @property
    def link_share(self) -> float | None:
        """Returns the copy's rate, of the speed of its link; None where one of them is not known."""
        return self.bytes_per_s / self.link_bytes_per_s if self.bytes_per_s and self.link_bytes_per_s else None


class CheckpointDone(DoneEvent, frozen=True, kw_only=True):
    """A checkpoint is done. `strategy`: how device data left. `stop_s`: the program stood still.

    vram_free_s: None if the job runs on, or if its memory stays resident
    """

    strategy: str
    stop_s: float
    vram_free_s: float | None
    image: str | None


class RestoreDone(DoneEvent, frozen=True, kw_only=True):
    """A restore is done. `moved`: devices by UUID: what the job left, and where it came back instead."""

    cold: bool
    moved: Mapping[str, str]


class FailedEvent(CommandEvent, frozen=True, kw_only=True):
    """A command was refused, or failed. `exit` says which: 3 refused, 4 rolled back, 5 lost, 130 interrupted.

    code, exit, message: of the error · state: in which it leaves the job
    """

    code: str
    exit: int
    message: str
    state: str | None
    took_s: float


class CheckpointFailed(FailedEvent, frozen=True, kw_only=True):
    """A checkpoint was not done."""


class RestoreFailed(FailedEvent, frozen=True, kw_only=True):
    """A restore was not done."""


_CHECKPOINTS = (CheckpointBegun, CheckpointDone, CheckpointFailed)


def command_of(event: CommandEvent) -> str:
    """Returns `checkpoint` or `restore`: the command that an event is a part of."""
    return "checkpoint" if isinstance(event, _CHECKPOINTS) else "restore"


class ImageWritten(JobEvent, frozen=True, kw_only=True):
    """An image is durable. `durable_s`: since the request; `bytes_written`: bytes that the store did not have."""

    image: str
    durable_s: float
    bytes_written: int


class ImageFailed(JobEvent, frozen=True, kw_only=True):
    """An image was not written."""

    image: str
    code: str
    message: str


class SaveEvent(JobEvent, frozen=True, kw_only=True):
    """A training program's save of its own device memory is over. run, step: as which, where the program has said so"""

    pid: int
    run: str = ""
    step: int | None = None

    @property
    def of(self) -> str:
        """Returns what was saved, in words."""
        return f"{'' if self.step is None else f'step {self.step} of run {self.run}, '}process {self.pid}"


class SaveDone(SaveEvent, frozen=True, kw_only=True):
    """A save has its bytes on the host. Times are from the program's request.

    aside_s: it ran on · safe_s: it might write to memory that was read in place · took_s: the bytes were there
    """

    bytes: int
    aside_s: float
    safe_s: float
    took_s: float


class SaveFailed(SaveEvent, frozen=True, kw_only=True):
    """A save was refused, or failed. The program runs on."""

    code: str
    exit: int
    message: str
    took_s: float


class RemovalEvent(Event, frozen=True, kw_only=True):
    """`gcr rm` or `gcr prune` (`command`) is over. `images`: the first IMAGES of `count`; by: as in CommandEvent"""

    command: str
    by: str
    store: str
    images: tuple[str, ...]
    count: int
    took_s: float


class ImagesRemoved(RemovalEvent, frozen=True, kw_only=True):
    """These images are gone. `bytes_freed`: of the store."""

    bytes_freed: int


class RemovalFailed(RemovalEvent, frozen=True, kw_only=True):
    """An error of the command. `images`: those that it was to remove, as far as that was known"""

    code: str
    exit: int
    message: str


AnyEvent = (
    DaemonStarted
    | EventsMissed
    | JobRegistered
    | JobEnded
    | JobReleased
    | SupervisorGone
    | JobRecovered
    | ProcessAttached
    | ProcessEnded
    | CheckpointBegun
    | CheckpointDone
    | CheckpointFailed
    | RestoreBegun
    | RestoreDone
    | RestoreFailed
    | ImageWritten
    | ImageFailed
    | SaveDone
    | SaveFailed
    | ImagesRemoved
    | RemovalFailed
)


class EventBatch(Answer, frozen=True, kw_only=True):
    """The answer of `events`: the oldest of those that were asked for, with consecutive numbers.

    daemon: the daemon that gave the events their numbers · last: the number to ask from next
    """

    daemon: str
    last: int
    events: tuple[AnyEvent, ...]
