"""The request of `gcr run`, and its outcome."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gcr.backend import Simulator
from gcr.supervisor.parking import Reviver
from gcr.supervisor.revival import Revival


class JobSpec(Struct, frozen=True):
    argv: tuple[str, ...]
    name: str | None = None  # None: called after its program and a counter
    detach: bool = False
    backend: str | None = None
    simulate: str | None = None  # a vendor whose simulated driver the job shall see
    simulator: Simulator | None = None  # that driver; None: the one gcr brings for `simulate`
    shim: Path | None = None  # None: gcr's own
    environment: Mapping[str, str] | None = None  # of the program; None: ours
    folder: str | None = None  # in which the program starts; None: ours
    revival: Revival | None = None  # the program is not started, it comes back from an image
    reviver: Reviver | None = None  # brings it back after it was parked; None: it cannot be
    report: str | None = None  # file that receives the job's last report as JSON


class Outcome(Struct, frozen=True):
    code: int  # the one `gcr run` returns: the program's, 128+n for signal n; 0 once a detached one runs
    job: str
    log: str | None = None  # the file that a detached job writes to
    image: str | None = None  # the one that the job was stopped into
    store: str | None = None  # of that image, a whole path
    unreported: str = ""  # why the file of the report was not written; empty: it was, or none was asked for
