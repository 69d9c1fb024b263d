"""Steps of a migration on one node, their answers, and the report of a whole migration.

Sizes are bytes, times seconds. A step is the body of the request `migrate`, which only the daemon's user and root
may send.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, field, to_builtins

from gcr.api.answers import Answer
from gcr.api.checks import check_image_name, check_migration, check_name
from gcr.converting import convert
from gcr.errors import UsageError


class Found(Answer, frozen=True, kw_only=True):
    """The answer of a step that has nothing to say."""


class Stepped(Answer, frozen=True, kw_only=True):
    """The answer of a step that a helper took: the fields of that step's own answer."""

    found: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, those of the step's own answer."""
        return dict(self.found)


class Step(Struct, frozen=True, kw_only=True, tag_field="step", tag=str.lower, forbid_unknown_fields=True):
    """A step. `job`: the name of the job that moves."""

    job: str

    def __post_init__(self) -> None:
        check_name(self.job)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, the step's name among them."""
        found: dict[str, Any] = to_builtins(self)
        return found


class Named(Step, frozen=True, kw_only=True):
    """A step of the migration `id`."""

    id: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_migration(self.id)


# ---- steps that the daemon takes itself ------------------------------------------------------------------------------


class Describe(Step, frozen=True, kw_only=True):
    """Describes a job that is to leave, and refuses what a checkpoint with `--stop` would refuse."""


class Begin(Named, frozen=True, kw_only=True):
    """Writes the migration down. `stage`: copying or arriving · `mover`: the command, as of gcr.job.mover

    here, peer: the node and the other one, as the command line names them
    """

    stage: str
    here: str
    peer: str
    store: str
    mover: dict[str, Any]


class Move(Named, frozen=True, kw_only=True):
    """Changes the stage of the record at the source: leaving, given or kept. `image`: one that is made next."""

    stage: str
    image: str = ""


class Own(Named, frozen=True, kw_only=True):
    """The target has the job from here on: it may open its gates, and any command may bring it back."""


class Standing(Step, frozen=True, kw_only=True):
    """Asks for the record of a migration."""


class World(Struct, frozen=True):
    """The drivers that the job sees: a backend, and the settings of a simulated machine."""

    backend: str
    simulated: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


class Warm(Named, frozen=True, kw_only=True):
    """Starts the workers of these devices, and the control helper, so that the stop waits for no start of a driver."""

    world: World
    devices: tuple[str, ...]


# ---- steps that a helper takes ---------------------------------------------------------------------------------------


class Look(Step, frozen=True, kw_only=True):
    """Describes the node itself. `pids`: of the job's processes, for the files that they have open; none at the target.

    files: those of the source, which the target compares with its own; packed as of `Files`
    """

    world: World
    pids: tuple[int, ...] = ()
    files: str = ""


class Offer(Named, frozen=True, kw_only=True):
    """Offers the node's store to the other one, at a free port of `host`, until the record goes."""

    host: str


class Exchange(Struct, frozen=True):
    """A store that is offered: its address, the token that it asks for, and the certificate that it shows (PEM)."""

    address: str
    token: str
    certificate: str


class Pull(Named, frozen=True, kw_only=True):
    """Pulls an image. With `revive` it awaits the image, and then makes the processes of the job again, suspended.

    fill: of this image; the devices are filled with it beside that
    """

    image: str
    exchange: Exchange
    revive: bool = False
    fill: "Fill | None" = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_image_name(self.image)


class Fill(Named, frozen=True, kw_only=True):
    """Fills the devices with the bytes of an image that is here, but for those that they have from an earlier one.

    devices: those of the target by those of the source, by UUID
    """

    image: str
    world: World
    devices: Mapping[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_image_name(self.image)


class Run(Named, frozen=True, kw_only=True):
    """Has the job run here, wherever it stands: it may run, be suspended, or be in the last image alone."""

    images: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)


class Abandon(Named, frozen=True, kw_only=True):
    """Ends what has arrived of the job, and removes its images and the record; nothing where the job is owned."""


class Forget(Named, frozen=True, kw_only=True):
    """Removes images and the record."""

    images: tuple[str, ...] = ()


AnyStep = Describe | Begin | Move | Own | Standing | Warm | Fill | Look | Offer | Pull | Run | Abandon | Forget

S = TypeVar("S", bound=Answer)


def step_of(body: Mapping[str, Any]) -> AnyStep:
    """Returns the step that a body is. Raises UsageError for one that is unknown or malformed."""
    try:
        found: AnyStep = convert(dict(body), AnyStep)
    except ValidationError as error:
        raise UsageError(f"no step of a migration: {error}") from error
    return found


# ---- answers ---------------------------------------------------------------------------------------------------------


class JobFacts(Answer, frozen=True, kw_only=True):
    """A job that may leave. `pids`: its tree, the program first · `devices`: bytes of its data, by UUID

    host_bytes: resident memory of its processes
    """

    state: str
    world: World
    pids: tuple[int, ...]
    devices: Mapping[str, int]
    host_bytes: int


class MovingTo(Answer, frozen=True, kw_only=True):
    """The record of a migration, with empty words where there is none. `state`: of the job here, empty without one."""

    id: str
    stage: str
    peer: str
    images: tuple[str, ...]
    state: str


class Place(Struct, frozen=True):
    """A device, and the bytes that are free there."""

    uuid: str
    name: str
    free_bytes: int


class NodeFacts(Answer, frozen=True, kw_only=True):
    """A node, as far as a job that comes from another one needs it to be like that one.

    kind: facts that have to be the same at both nodes, by name: gcr's version, the user, the daemon's socket …
    lacks: what it cannot do without a remedy, one sentence each · `drivers`: evidence of the backend, by name
    files: the files of the job's processes, packed · `missing`: files that are not as they are at the source
    """

    kind: Mapping[str, str]
    store: str
    store_free_bytes: int
    encrypted: bool
    jobs: tuple[str, ...]
    devices: tuple[Place, ...]
    drivers: Mapping[str, str]
    lacks: tuple[str, ...]
    files: str = ""
    missing: tuple[str, ...] = ()


class Offered(Answer, frozen=True, kw_only=True):
    exchange: Exchange


class Pulled(Answer, frozen=True, kw_only=True):
    """A pull. `processes_s`: seconds until processes and fill were there, 0 where they were not asked for.

    phases_s: the end of each part of that, in seconds from the pull's end · filled: the end of the fill beside it
    """

    bytes_moved: int
    pull_s: float
    processes_s: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    filled: "Filled | None" = None


class Filled(Answer, frozen=True, kw_only=True):
    """A fill. `bytes`: those that were read and copied. `refused`: why nothing is on the devices ahead, else empty."""

    bytes: int
    fill_s: float
    refused: str = ""


class RanOn(Answer, frozen=True, kw_only=True):
    """The job's state, and whether it had ended by itself."""

    state: str
    ended: bool = False


# ---- the report ------------------------------------------------------------------------------------------------------


class RoundReport(Answer, frozen=True, kw_only=True):
    """One round of copying. `paid`: it sent clearly less than the one before.

    host_bytes: of host memory that were read, sent or not; 0 where the source's kernel does not show that memory
    """

    bytes_sent: int
    copy_s: float
    pull_s: float
    paid: bool
    host_bytes: int = 0


class StopReport(Answer, frozen=True, kw_only=True):
    """The stop. `stop_s`: from the first closed gate at the source to open gates at the target

    phases_s: the end of each part, in seconds from the first closed gate
    filled_bytes: copied to the target's devices as images came in · not_filled: why the last image was read whole
    """

    stop_s: float
    phases_s: Mapping[str, float]
    filled_bytes: int = 0
    not_filled: str = ""


class MigrationReport(Answer, frozen=True, kw_only=True):
    """A migration. `outcome`: done, refused, taken_back or unsettled. `stop`: None where the job does not run there.

    bytes_sent: those that the target pulled, within the stop as well · left_over: what was not removed, and why
    """

    job: str
    id: str
    outcome: str
    source: str
    target: str
    simulated: bool = False
    rounds: tuple[RoundReport, ...] = ()
    bytes_sent: int = 0
    stop: StopReport | None = None
    moved: Mapping[str, str] = field(default_factory=dict)
    left_over: tuple[str, ...] = ()
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope."""
        stop = self.stop.to_json() if self.stop else None
        return {**super().to_json(), "rounds": [each.to_json() for each in self.rounds], "stop": stop}
