"""Reports and rows of the daemon with plain contents, for tests that need one of them."""

from typing import Any

from gcr.api.listings import JobInfo, ProcessInfo
from gcr.api.reports import CheckpointReport, RestoreReport

PROCESS: dict[str, Any] = {
    "pid": 4711,
    "state": "running",
    "strategy": "handoff",
    "device": "",
    "bytes": 0,
    "covered_bytes": 0,
    "uncovered": {},
    "handles": 0,
    "pinned_host_bytes": 0,
    "contexts": 0,
    "label": None,
}
JOB: dict[str, Any] = {
    "job": "llm",
    "pid": 4711,
    "state": "running",
    "started": "2026-01-01T00:00:00+00:00",
    "simulated": False,
    "backend": "nvidia",
    "command": (),
    "image": None,
    "images": (),
    "only_in": None,
    "processes": (),
    "arena": None,
    "changing": False,
}
CHECKPOINT: dict[str, Any] = {
    "job": "llm",
    "simulated": False,
    "state": "suspended",
    "strategy": "handoff",
    "bytes": 0,
    "bytes_copied": 0,
    "snapshot_bytes": 0,
    "streamed": False,
    "vram_free_s": 0.5,
    "stop_s": 0.25,
    "drain_s": 0.125,
    "drain_bytes_per_s": None,
    "control_s": 0.125,
    "link_bytes_per_s": None,
    "durable_s": None,
    "vram_after_bytes": 0,
    "resident_bytes": 0,
    "processes": (),
}
RESTORE: dict[str, Any] = {
    "job": "llm",
    "simulated": False,
    "state": "running",
    "bytes": 0,
    "refill_s": 0.25,
    "refill_bytes_per_s": None,
    "control_s": 0.125,
    "link_bytes_per_s": None,
    "total_s": 0.5,
    "cold": False,
    "streamed": False,
    "moved": {},
}


def process(**more: Any) -> ProcessInfo:
    return ProcessInfo(**PROCESS | more)


def job_info(**more: Any) -> JobInfo:
    return JobInfo(**JOB | more)


def checkpointed(**more: Any) -> CheckpointReport:
    return CheckpointReport(**CHECKPOINT | more)


def restored(**more: Any) -> RestoreReport:
    return RestoreReport(**RESTORE | more)
