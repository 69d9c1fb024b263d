"""The operations of an image helper, which writes one image, or reads one, or looks at a store."""

from typing import Generic

from msgspec import Struct

from gcr.protocol.operations.operation import A, Count, Nothing, Operation, Size

Window = tuple[Count, Count, Size]
"""A slot, an offset on the line, and a size."""

Identity = tuple[int, int, int]
"""The pid, the start time and the address of the stack of a process."""


class InStore(Operation[A], Generic[A], frozen=True):
    """An image by its store and its name; `encrypted`: the descriptor of the store's key comes along."""

    takes = "the store's key, if it is encrypted"

    store: str
    encrypted: bool
    name: str


class OfProcess(Operation[A], Generic[A], frozen=True):
    pid: int


class Lending(OfProcess[Nothing], frozen=True):
    """Descriptors from `offset` on, of `total`."""

    offset: Count
    total: Size


class Passing(OfProcess[Nothing], frozen=True):
    device: str
    window: Window


# The image that is written.


class Free(Struct, frozen=True):
    """`free`: bytes where the store is, None where that is not known."""

    free: int | None


class Begin(InStore[Free], frozen=True):
    op = "begin"

    max_bytes_per_s: float | None


class ParentFound(Struct, frozen=True):
    """`parent`: the image that this one builds upon; `refused`: why it is no newer one."""

    parent: str | None
    refused: str | None


class Parent(Operation[ParentFound], frozen=True):
    op = "parent"

    processes: tuple[Identity, ...]


class Baseline(OfProcess[Nothing], frozen=True):
    op = "baseline"
    gives = "a Baseline of the parent's chunks"


class Lend(Lending, frozen=True):
    """`partial`: the copy is for this image alone."""

    op = "lend"
    takes = "tables, each with its segments"

    partial: bool


class LendRing(Lending, frozen=True):
    op = "lend_ring"
    takes = "the sealed table of one device, then the memory of a ring"

    slot_bytes: Size


class Take(Passing, frozen=True):
    op = "take"


class Withdraw(Operation[Nothing], frozen=True):
    op = "withdraw"


class ImagedAs(Struct, frozen=True):
    """A process at the cut. `generation`: of its allocations; its agent counts it."""

    stack: int
    generation: int


class Written(Struct, frozen=True, kw_only=True):
    """The costs of a durable image, as in its manifest; `parent_refused`: why its parent is no newer image.

    host_bytes: of memory of processes that ran on
    """

    parent: str | None
    bytes_total: int
    bytes_changed: int | None
    bytes_zero: int
    bytes_written: int
    parent_refused: str | None
    host_bytes: int = 0


class Write(Operation[Written], frozen=True):
    """Facts of the job, for the manifest. `models`: of devices, by UUID; `timings`: seconds from the request.

    tree: the root of a process tree that runs on, if its host memory is to be in the image; such an image has no
    processes all the same
    """

    op = "write"

    job: str
    backend: str
    simulated: bool
    models: dict[str, str]
    processes: dict[int, ImagedAs]
    created: float
    timings: dict[str, float]
    tree: int | None = None


class WriteHeld(Operation[Written], frozen=True):
    """The same, and there is no image yet when the answer comes, but its bytes are in the store: see `AddFolder`.

    ahead: another node may have the packs before there is an image
    """

    op = "write_held"

    facts: Write
    ahead: bool = False


class AddFolder(Operation[Written], frozen=True):
    """Publishes an image that was held.

    folder: the files of a process tree that CRIU saved · facts: in place of those of `WriteHeld`, which knew less
    left: private memory is in the processes still, which CRIU holds
    """

    op = "add_folder"

    folder: str
    facts: Write
    left: bool


# The image that is read.


class Open(InStore[Nothing], frozen=True):
    """`seal`: of the image's manifest, as hexadecimal digits."""

    op = "open"

    seal: str


class LendSlots(Operation[Nothing], frozen=True):
    """Descriptors from `offset` on, of `total`."""

    op = "lend_slots"
    takes = "the memory of the slots, in order"

    device: str
    slot_bytes: Size
    offset: Count
    total: Size


class Read(OfProcess[Nothing], frozen=True):
    """`windows`: offset on the line and size of each; they come to lie one behind the other in the slot."""

    op = "read"

    device: str
    slot: Count
    windows: tuple[tuple[Count, Size], ...]


class Windows(Struct, frozen=True):
    """Offset on the line and size of each window."""

    windows: tuple[tuple[int, int], ...]


class Lacking(Operation[Windows], frozen=True):
    """Asks for the windows of a line that differ from what is on the device, of at most `most` bytes.

    kept: ids of allocations that keep the bytes that `brought` has told of; the rest is lacking
    """

    op = "lacking"

    pid: int
    device: str
    kept: tuple[int, ...]
    most: Size


class Brought(OfProcess[Nothing], frozen=True):
    """Every window that was lacking of a line is on the device."""

    op = "brought"

    device: str


class LoadedCount(Struct, frozen=True):
    descriptors: int


class Load(OfProcess[LoadedCount], frozen=True):
    op = "load"


class Loaded(OfProcess[Nothing], frozen=True):
    op = "loaded"
    gives = "descriptors of the process from `offset` on, `limit` at most"

    offset: Count
    limit: Size


# A store.


class ManifestText(Struct, frozen=True):
    text: str


class ReadManifest(InStore[ManifestText], frozen=True):
    op = "manifest"


class Sync(Operation[Nothing], frozen=True):
    op = "sync"

    store: str


class Remove(InStore[Nothing], frozen=True):
    """The image of that name is removed if it is of the instant `created`."""

    op = "remove"

    created: float


class FoundPart(Struct, frozen=True, kw_only=True):
    """An image that is a node's part of an image over nodes, as of `gcr.api.partrequests`."""

    image: str
    job: str
    created: float
    seal: str
    bytes: int
    whole: bool
    root: str | None


class FoundParts(Struct, frozen=True):
    parts: tuple[FoundPart, ...]


class FindParts(Operation[FoundParts], frozen=True):
    """The parts of an image over nodes or, without its name, those of a job that have their root."""

    op = "find_parts"

    store: str
    image: str | None
    job: str | None


class KeepRoot(Operation[Nothing], frozen=True):
    """Writes the root of an image over nodes beside this node's part of it. `root`: its text · `part`: its name."""

    op = "keep_root"

    store: str
    root: str
    part: str


class DropParts(Operation[Nothing], frozen=True):
    """The parts of an image over nodes that are older than that of `cut`, of the same job, are removed."""

    op = "drop_parts"

    store: str
    image: str
    cut: str
