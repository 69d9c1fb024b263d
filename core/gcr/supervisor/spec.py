"""What a user asked `gcr run` to do."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSpec:
    argv: tuple[str, ...]
    name: str | None = None  # None: called after its program and a counter
    detach: bool = False
    backend: str | None = None
    simulate: str | None = None  # a vendor whose simulated driver the job shall see
    report: str | None = None  # file that receives the job's last report as JSON
