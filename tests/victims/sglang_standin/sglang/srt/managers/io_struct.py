"""Requests to a scheduler, and its answers: the fields that gcr reads or sets."""

from dataclasses import dataclass


@dataclass(kw_only=True)
class ReleaseMemoryOccupationReqInput:
    tags: list[str] | None = None


@dataclass(kw_only=True)
class ResumeMemoryOccupationReqInput:
    tags: list[str] | None = None


@dataclass(kw_only=True)
class PauseGenerationReqInput:
    mode: str = "abort"


@dataclass(kw_only=True)
class ContinueGenerationReqInput:
    torch_empty_cache: bool = True


@dataclass(kw_only=True)
class FlushCacheReqInput:
    timeout_s: float | None = None


@dataclass(kw_only=True)
class FlushCacheReqOutput:
    success: bool
    message: str = ""
