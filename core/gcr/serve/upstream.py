"""The jobs of `gcr serve` as its pool sees them. `jobs` has the real ones; tests have others."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from gcr.serve.config import ModelConfig


class Found(Struct, frozen=True, kw_only=True):
    """A job that is there. `changing`: a command has its turn at it; `bytes`: of device memory.
    `context`, `memory`: it is parked, and that is on the device still.

    start: of its program, in clock ticks after boot; a pid may be used again
    """

    pid: int
    port: int
    start: int | None = None
    parked: bool = False
    context: bool = False
    memory: bool = False
    lost: bool = False
    changing: bool = False
    bytes: int = 0


class Moved(Struct, frozen=True, kw_only=True):
    """A job that was parked or woken. `seconds`: by each phase of it; `context`, `memory`: it is parked, and that is
    on the device still.
    """

    bytes: int
    seconds: Mapping[str, float]
    context: bool = False
    memory: bool = False


class Next(Struct, frozen=True):
    """The parked model that comes in once another one is parked. `bytes`: of device memory that it may have before."""

    name: str
    bytes: int


class Jobs(Protocol):
    """Each call may take long, and raises GcrError."""

    async def find(self) -> Mapping[str, Found]:
        """Returns the jobs of the models, by name."""

    async def room(self) -> int | None:
        """Returns the device memory that there is for all models; None where it is not known yet."""

    async def start(self, model: ModelConfig, port: int) -> Found:
        """Starts the job, and returns when its program runs."""

    async def restored(self, model: ModelConfig) -> Found | None:
        """Brings the server back from its image, and returns once it runs. None: there is no image, or a job already.

        After an error what came back suspended is ended, and an image that no later try would restore is removed.
        """

    async def saved(self, model: ModelConfig) -> None:
        """Writes the server, which is healthy and had no request, to its image. It runs on, also after an error."""

    async def healthy(self, model: ModelConfig, job: Found) -> None:
        """Returns once the server answers. Raises NeverHealthy."""

    async def park(self, name: str, context_later: bool, then: Next | None = None) -> Moved:
        """Parks a model. context_later: its memory leaves now, and where there is a way its context by `leave`.

        then: memory of this one is refilled meanwhile, where the device has room besides
        """

    async def wake(self, name: str) -> Moved: ...

    async def leave(self, name: str, memory: bool) -> Mapping[str, float]:
        """Has the context of a parked model leave the device, too. memory: and its memory, should that be resident.

        Returns seconds by phase.
        """

    async def end(self, name: str, job: Found) -> None:
        """Ends the program, if it runs: SIGTERM, and SIGKILL after a grace."""
