"""Requests: what the command line and the library ask of the daemon, with the fields of the JSON on the socket.

A request checks itself when it is made, so both ends refuse the same with UsageError. Times are seconds, rates bytes
per second. A target is a job's name or, as an integer, a pid. A field with its default is not sent.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from msgspec import Struct, ValidationError, field, to_builtins

from gcr.api.barriers import Barrier
from gcr.api.checks import (
    check_allowed,
    check_backend,
    check_cut,
    check_image_name,
    check_rate,
    check_seconds,
    check_spans,
    check_waited_for,
    checked_target,
)
from gcr.converting import convert
from gcr.errors import UsageError
from gcr.standstill.messages import Lead

Target = str | int
MOST_WAIT_S = 60.0  # of a request for events
MOST_OF_A_RUN = 200  # characters of its name


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command without options."""

    op: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """Returns the body of the frame, without the name of the command."""
        found: dict[str, Any] = to_builtins(self)
        return found

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Raises UsageError for a field that is missing, unknown or of the wrong type, and as the constructor does."""
        try:
            return convert({name: value for name, value in body.items() if name != "op"}, cls)
        except ValidationError as error:
            raise UsageError(f"{cls.op}: {error}") from error


class PingRequest(Request, frozen=True, kw_only=True):
    op = "ping"


class PsRequest(Request, frozen=True, kw_only=True):
    op = "ps"


class DevicesRequest(Request, frozen=True, kw_only=True):
    op = "devices"


class StatusRequest(Request, frozen=True, kw_only=True):
    op = "status"


class EventsRequest(Request, frozen=True, kw_only=True):
    """Events with numbers above `after`; None: above the last one there is.

    daemon: the daemon that `after` is a number of, as in EventBatch; any other daemon begins at its first event
    wait_s: the answer waits so long for an event, at most MOST_WAIT_S
    """

    op = "events"

    after: int | None = 0
    daemon: str = ""
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if self.after is not None and self.after < 0:
            raise UsageError(f"{self.after} is no number of an event")
        if not 0 <= self.wait_s <= MOST_WAIT_S:
            raise UsageError(f"{self.wait_s!r} is no time to wait, of {MOST_WAIT_S:g} s at most")


class RecoverRequest(Request, frozen=True, kw_only=True):
    op = "recover"


class TransferRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that moves jobs. `timeout` None leaves the daemon's own deadlines, `backend` None any vendor."""

    timeout: float | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        check_seconds(self.timeout)
        check_backend(self.backend)


class ImageRequest(TransferRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command about one job and possibly one image. `store` is the whole path of its folder.

    Only a part of a cut, and one that is revived, may name none: it is the store of the daemon's own user then.
    `encrypted`: a descriptor of the store's key comes with the request.
    `cut`: the id of the cut over several nodes that this is a part of: it waits for them at barriers (api/barriers.py)
    """

    target: Target
    image: str | None = None
    store: str | None = None
    encrypted: bool = False
    cut: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_target(self.target)
        if self.image is not None:
            check_image_name(self.image)
        elif self.store or self.encrypted:
            raise UsageError("a store and its key are for a request with an image")
        check_cut(self.cut)


class NextJob(Struct, frozen=True, forbid_unknown_fields=True):
    """The suspended job that comes in once another one has left. `most_bytes`: of its memory, before that."""

    job: Target
    most_bytes: int | None = None

    def __post_init__(self) -> None:
        checked_target(self.job)
        if self.most_bytes is not None and self.most_bytes < 0:
            raise UsageError(f"{self.most_bytes} is no number of bytes")


class LeaveRequest(ImageRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of a checkpoint that is about what leaves the devices, and when.

    resident: the memory stays on its devices, beside its copy on the host, until another program needs the room

    context_later: `data_only` where the driver's context can leave later, else all leaves now. It leaves by another
    checkpoint, or once another program wants the room and memory beside it was evicted

    then: the job that comes in next. While the data of this one leaves, memory of that one is made where the devices
    have room already, and refilled
    """

    data_only: bool = False
    resident: bool = False
    context_later: bool = False
    then: NextJob | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image is None:
            return
        if self.context_later:
            raise UsageError("a context leaves later after a checkpoint without an image: choose one")
        if self.resident:
            raise UsageError("resident is for a checkpoint without an image: choose one")
        if self.then is not None:
            raise UsageError("a job that comes in next is for a checkpoint without an image: choose one")


class CheckpointRequest(LeaveRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`wait`: answer once VRAM is free ("vram"), or once the image is on disk ("durable"). `allow`: see ALLOWED.

    container: the job's agents and supervisor leave, too: a container's runtime saves the processes
    """

    op = "checkpoint"

    wait: str = "vram"
    live: bool = False
    leave_running: bool = False
    stop: bool = False
    processes: bool = False
    container: bool = False
    allow: tuple[str, ...] = ()
    paranoid: bool = False
    max_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_waited_for(self.wait)
        check_rate(self.max_bytes_per_s)
        check_allowed(self.allow)
        if self.allow and not self.whole:
            raise UsageError("what CRIU may do is for a checkpoint of processes: --processes, or --stop")
        if self.image is None and self._about_an_image():
            how = "live, leave-running, stop, processes, container, a rate and waiting for a disk"
            raise UsageError(f"{how} are for a checkpoint with an image")
        if self.leave_running and self.data_only:
            raise UsageError("data-only takes a job off its device, leave-running does not: choose one")
        if self.leave_running and self.stop:
            raise UsageError("stop ends the program, leave-running lets it go on: choose one")
        if self.container and (self.whole or self.leave_running or self.data_only):
            raise UsageError("container is for a whole job, and its runtime has the processes: choose one")
        if self.cut is not None and (self.container or (self.leave_running and not self.processes)):
            raise UsageError("an image of a cut over several nodes has the processes of a job that runs on: processes")
        if self.data_only and self.whole:
            raise UsageError("data-only leaves a context on the device, so its process cannot be saved: choose one")

    @property
    def whole(self) -> bool:
        """Returns whether the image has the processes, too."""
        return self.stop or self.processes

    @property
    def evicts(self) -> bool:
        """Returns whether a job that is suspended already has to leave its devices for good by it."""
        return not self.resident and self.image is None

    def _about_an_image(self) -> bool:
        how = (self.live, self.leave_running, self.whole, self.container, self.max_bytes_per_s)
        return any(how) or self.wait != "vram"


class RestoreRequest(ImageRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`devices`: other ones to come back on, old to new, as `gcr devices` names them.

    container: the text of `container.json` in the image, where a container's runtime has the processes
    revive: the daemon makes the processes of a job that was stopped into the image, and ends them if the rest fails
    without: pids that the driver does not give back: these end, and the others come back
    """

    op = "restore"

    container: str | None = None

    revive: bool = False
    devices: dict[str, str] = field(default_factory=dict)
    without: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cut is not None and (self.container is not None or self.without):
            raise UsageError("a cut over several nodes comes back as a whole: choose one")
        if self.revive and (self.image is None or self.container is not None or not isinstance(self.target, str)):
            raise UsageError("the processes of a job by its name are made again, from an image that has them")


class CutRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The coordinator's word to a part of cut `id`: it may pass `barrier`, is led, or without both it is given up."""

    op = "cut"

    id: str
    barrier: Barrier | None = None
    lead: Lead | None = None

    def __post_init__(self) -> None:
        check_cut(self.id)
        if self.barrier and self.lead:
            raise UsageError("a part passes a barrier, or is led: choose one")


class MigrateRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a migration on this node (api/migrations.py). `timeout`: seconds that it may take."""

    op = "migrate"

    step: dict[str, Any]
    timeout: float


class SwapRequest(TransferRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Job `out` leaves and job `back` comes back. `data_only` is about the one, `devices` about the other."""

    op = "swap"

    out: Target
    back: Target = field(name="in")
    data_only: bool = False
    devices: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_target(self.out)
        checked_target(self.back)

    def checkpoint(self) -> CheckpointRequest:
        """Returns the half that takes `out` off its device."""
        return CheckpointRequest(
            target=self.out,
            timeout=self.timeout,
            backend=self.backend,
            data_only=self.data_only,
            then=None if self.devices else NextJob(self.back),  # its bytes are beside the device that it left
        )

    def restore(self, timeout: float | None) -> RestoreRequest:
        """Returns the half that brings `back` to its device."""
        return RestoreRequest(target=self.back, timeout=timeout, backend=self.backend, devices=self.devices)


class SaveSpansRequest(TransferRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Saves device memory of the process that asks: it is copied aside on the device, or read in place.

    All is made ready. Then the save waits for `save_now` on the same connection, which names the memory.

    run, step: what the program saves it as, for events; "" and None where it does not say. Raises UsageError.
    """

    op = "save_spans"

    run: str = ""
    step: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.run) > MOST_OF_A_RUN:
            raise UsageError(f"the name of a run has {len(self.run)} characters, {MOST_OF_A_RUN} at most")
        if self.step is not None and self.step < 0:
            raise UsageError(f"step {self.step} is below 0")


class SaveNowRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names the memory of `save_spans`. The device's work on it has ended: it may be copied.

    spans: address and bytes of each, in the process's own device memory, all of one device
    in_place: numbers of spans that the process does not write before `safe`; they may be read where they are
    fills: as many bytes of these as the device has room for are copied aside still
    """

    op = "save_now"

    spans: tuple[tuple[int, int], ...]
    in_place: tuple[int, ...] = ()
    fills: bool = True

    def __post_init__(self) -> None:
        check_spans(self.spans, self.in_place)


class NoteRemovalRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command of this user has removed images, or, with a `code`, has failed to: the daemon is to remember it.

    command: `rm` or `prune` · code, exit, message: of the error
    """

    op = "note_removal"

    command: str
    store: str
    took_s: float
    images: tuple[str, ...] = ()
    bytes_freed: int = 0
    code: str | None = None
    exit: int = 0
    message: str = ""

    def __post_init__(self) -> None:
        if self.command not in ("rm", "prune"):
            raise UsageError(f"{self.command!r} removes no images")
        for name in self.images:
            check_image_name(name)


class StopRequest(Request, frozen=True, kw_only=True):
    """`force`: also while jobs depend on the daemon. Another version of gcr may ask, with more fields."""

    op = "stop"

    force: bool = False


class HandOverRequest(Request, frozen=True, kw_only=True):
    """A daemon of another version is to take over: its gcr's version, and the protocol that it speaks."""

    op = "hand_over"

    version: str
    wire: int
