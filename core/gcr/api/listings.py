"""Lists: jobs and their processes, images, and devices, with the fields of the JSON that the command line prints.

Sizes are bytes; None is null.
"""

from typing import Any

from msgspec import UNSET, UnsetType

from gcr.api.answers import Answer
from gcr.api.reports import ProcessReport


class SharedMemory(Answer, frozen=True, kw_only=True):
    """Device memory that two processes hold. `pid`: the other's, None if it has ended or is under no gcr that is known.

    `owner`: the other owns it, and its bytes count there alone.
    """

    pid: int | None
    bytes: int
    owner: bool


class ProcessInfo(ProcessReport, frozen=True, kw_only=True):
    """A process of a job on one device. `label`: the device as `gcr devices` numbers it, None until that is known.

    `shared`: memory on all devices that it shares with other processes, in its first row.
    `resident_bytes`: of a suspended process, bytes that are on the device still; all are on the host.
    """

    label: str | None
    resident_bytes: int = 0
    shared: tuple[SharedMemory, ...] = ()


class ImageState(Answer, frozen=True, kw_only=True):
    """An image that was asked for with a checkpoint: `writing`, `durable` or `failed`; then `error` says why."""

    name: str
    state: str
    durable_s: float | None
    error: str | None


class OnlyCopy(Answer, frozen=True, kw_only=True):
    """The image that alone has the bytes of a suspended job."""

    image: str
    store: str


class ArenaReady(Answer, frozen=True, kw_only=True):
    """Bytes that a job's next checkpoint needs in host memory, and those of them that are filled and pinned."""

    wanted_bytes: int
    ready_bytes: int


class CutInfo(Answer, frozen=True, kw_only=True):
    """The cut over several nodes that a job is a part of. `barrier`: where it waits; None once it is suspended by it"""

    id: str
    barrier: str | None


class JobInfo(Answer, frozen=True, kw_only=True):
    """A job as `gcr ps` shows it. `started`: ISO 8601; `command`: empty for a process that gcr did not start.

    `image`: the last one that was asked for; `images`: that one, and those before it that were being written then.
    `changing`: a command or a recovery has its turn at the job, or a recovery is due. Meanwhile a gate may be closed,
    also where `state` is "running".
    `cut`: the one that it waits for, or was suspended by.
    """

    job: str
    pid: int | None
    state: str
    started: str
    simulated: bool
    backend: str
    command: tuple[str, ...]
    image: ImageState | None
    images: tuple[ImageState, ...]
    only_in: OnlyCopy | None
    processes: tuple[ProcessInfo, ...]
    arena: ArenaReady | None
    changing: bool = False
    cut: CutInfo | None = None

    @property
    def bytes(self) -> int:
        """Bytes of device data, all its processes together."""
        return sum(each.bytes for each in self.processes)

    def is_meant(self, target: str | int) -> bool:
        """Returns True for the job's name, and for the pid of its program or of a process of it."""
        return target in (self.job, self.pid, *(each.pid for each in self.processes))


class JobList(Answer, frozen=True, kw_only=True):
    """The answer of `ps`. `awaited`: pids that were under a former daemon and have not come to this one."""

    jobs: tuple[JobInfo, ...]
    awaited: tuple[int, ...] = ()


class DeviceInfo(Answer, frozen=True, kw_only=True):
    """A device, with the bytes in use by its own count. `link` is UNSET where a job's world was asked."""

    backend: str
    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    link: str | UnsetType | None = UNSET
    simulated: bool

    @property
    def label(self) -> str:
        """Returns its number: `nvidia:0`."""
        return f"{self.backend}:{self.index}"


class DeviceList(Answer, frozen=True, kw_only=True):
    """The answer of `devices`."""

    devices: tuple[DeviceInfo, ...]


class ImageInfo(Answer, frozen=True, kw_only=True):
    """An image as `gcr images` lists it. `created`: seconds since the epoch. All else is None for one that is damaged.

    `damaged`: what is wrong with it, as far as a list looks.
    """

    image: str
    job: str | None = None
    cut: str | None = None
    created: float | None = None
    backend: str | None = None
    simulated: bool | None = None
    processes: int | None = None
    bytes_total: int | None = None
    bytes_zero: int | None = None
    bytes_written: int | None = None
    parent: str | None = None
    damaged: str | None

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields; of a damaged image its name and the damage alone."""
        return {"image": self.image, "damaged": self.damaged} if self.damaged is not None else super().to_json()


class PartOf(Answer, frozen=True, kw_only=True):
    """A place in an image over nodes (gcr.cutroot). `rank`: from 0, of `nodes` · `node`: where the part was made"""

    image: str
    cut: str
    rank: int
    nodes: int
    node: str


class PartInfo(ImageInfo, frozen=True, kw_only=True):
    """An image that is one node's part of an image over nodes."""

    part: PartOf


class ImageList(Answer, frozen=True, kw_only=True):
    """The answer of `gcr images`."""

    images: tuple[ImageInfo, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON's fields, without the envelope."""
        return {"images": [image.to_json() for image in self.images]}
