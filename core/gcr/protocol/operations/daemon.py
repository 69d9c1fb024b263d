"""The operations that the daemon offers to a job's supervisor: the job, its program's start, and its end."""

from typing import Any

from msgspec import Struct

from gcr.protocol.operations.operation import Nothing, Operation


class Registered(Struct, frozen=True):
    """`name`: the job's, given by the daemon where the supervisor named none.

    contained: the supervisor is in a container, where no daemon could serve this one's jobs
    """

    name: str
    contained: bool = False


class ParkedIn(Struct, frozen=True):
    """A private store, and the image in it that keeps a parked job."""

    store: str
    image: str


class Register(Operation[Registered], frozen=True):
    """`pid`: of the program, None until it runs. `simulate`: a vendor; then `sim_environment` leads to its driver.

    parks: this supervisor stays without its program, and brings it back · parked: it does so now
    leaves: it knows `Leave` · revives: it makes the job's processes again, with so many bytes of device memory, and the
    restore from an image follows · fills: that image, where the devices may be filled with its bytes meanwhile
    """

    op = "register"

    token: str
    argv: tuple[str, ...]
    name: str | None = None
    pid: int | None = None
    backend: str | None = None
    simulate: str | None = None
    sim_environment: dict[str, str] | None = None
    parks: bool = False
    parked: ParkedIn | None = None
    leaves: bool = False
    revives: int | None = None
    fills: ParkedIn | None = None


class Started(Operation[Nothing], frozen=True):
    op = "started"

    pid: int


class Revived(Operation[Nothing], frozen=True):
    """The program is there again, suspended, and its processes wait for the answer. `decision`: a journal's record."""

    op = "revived"

    pid: int
    decision: str


class Vacate(Operation[Nothing], frozen=True):
    """Processes that come back need these ids. The daemon ends its idle helpers that have some of them."""

    op = "vacate"

    ids: tuple[int, ...]


class Remade(Operation[Nothing], frozen=True):
    """CRIU says that it made the processes again. The daemon asks their devices, too."""

    op = "remade"


class LastFacts(Struct, frozen=True):
    """`report`: JSON of the job's last report; `was`: the job's state when its program ended. None: not known.

    image: the one into which it was stopped · store: the image's, a whole path
    """

    report: dict[str, Any] | None = None
    was: str | None = None
    image: str | None = None
    store: str | None = None


class Finished(Operation[LastFacts], frozen=True):
    """`code`: the exit code of the program, or 128+n for signal n."""

    op = "finished"

    code: int
