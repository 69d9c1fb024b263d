"""gcr: checkpoint and restore processes that use a GPU.

    job = gcr.run(["python", "serve.py"], name="llm")
    report = job.checkpoint(timeout=60)
    job.restore()

Importing this is cheap: what a name needs is loaded when the name is first used.
"""

import importlib
from typing import TYPE_CHECKING

from gcr.version import __version__

if TYPE_CHECKING:
    from gcr.api.listings import ImageInfo, JobInfo, ProcessInfo
    from gcr.api.reports import CheckpointReport, ProcessReport, Report, RestoreReport, SwapReport
    from gcr.api.requests import NextJob
    from gcr.clustererrors import NoCluster, NodesDiffer, NodeUnreachable, TooFewNodes
    from gcr.cuterrors import (
        CannotHold,
        CutFailed,
        CutGivenUp,
        CutIncomplete,
        CutTaken,
        CutUnsettled,
        NoSuchCut,
        NotOneCut,
    )
    from gcr.errors import (
        AddressTaken,
        BackendMissing,
        CannotStart,
        CriuUnusable,
        DaemonUnavailable,
        DeadlinePassed,
        DeviceShared,
        DriverError,
        DriverGone,
        DriverTooOld,
        EndUnknown,
        GcrError,
        Interrupted,
        JobEnding,
        LibraryMissing,
        Lost,
        MoveRefused,
        NameTaken,
        NoContext,
        NoDescriptors,
        NoHome,
        NoOutput,
        NoRecord,
        NoRoom,
        NoSuchJob,
        NotAGpuProcess,
        NotAllKnown,
        NotDeviceMemory,
        NotOurs,
        NotRead,
        NotTakenBack,
        OwnerEnded,
        PeerGone,
        Refused,
        RolledBack,
        StagedGone,
        StandsStill,
        StillRuns,
        Stuck,
        SwapFailed,
        Unanswered,
        UnsafeRuntime,
        UnsupportedState,
        UsageError,
        WrongDevice,
        WrongState,
        WrongVersion,
    )
    from gcr.exchangeerrors import ImagesDiffer, PeerUnusable, PiecesMissing
    from gcr.imageerrors import (
        CannotSave,
        Damaged,
        FilesChanged,
        HashMissed,
        ImageExists,
        ImageFailed,
        ImageNeeded,
        KeyUnusable,
        NoSuchImage,
        NotDumped,
        NotDurable,
        NotRestored,
        NotSaveable,
        NotSaved,
        RunBusy,
        StepExists,
        StoreBusy,
        StoreUnusable,
        WrongImage,
        WrongKey,
    )
    from gcr.library.calls import attach, images, jobs, restore, run, swap
    from gcr.library.job import Job
    from gcr.losterrors import DaemonDied, NotLost, ProcessLost
    from gcr.migrationerrors import (
        CannotMigrate,
        GivenAway,
        MigrationFailed,
        MigrationUnderWay,
        MigrationUnsettled,
        NoSuchMigration,
    )
    from gcr.serveerrors import BadServeConfig, ModelTaken, NeverHealthy, PortInUse

__all__ = [
    "AddressTaken",
    "BackendMissing",
    "BadServeConfig",
    "CannotHold",
    "CannotMigrate",
    "CannotSave",
    "CannotStart",
    "CheckpointReport",
    "CriuUnusable",
    "CutFailed",
    "CutGivenUp",
    "CutIncomplete",
    "CutTaken",
    "CutUnsettled",
    "DaemonDied",
    "DaemonUnavailable",
    "Damaged",
    "DeadlinePassed",
    "DeviceShared",
    "DriverError",
    "DriverGone",
    "DriverTooOld",
    "EndUnknown",
    "FilesChanged",
    "GcrError",
    "GivenAway",
    "HashMissed",
    "ImageExists",
    "ImageFailed",
    "ImageInfo",
    "ImageNeeded",
    "ImagesDiffer",
    "Interrupted",
    "Job",
    "JobEnding",
    "JobInfo",
    "KeyUnusable",
    "LibraryMissing",
    "Lost",
    "MigrationFailed",
    "MigrationUnderWay",
    "MigrationUnsettled",
    "ModelTaken",
    "MoveRefused",
    "NameTaken",
    "NeverHealthy",
    "NextJob",
    "NoCluster",
    "NoContext",
    "NoDescriptors",
    "NoHome",
    "NoOutput",
    "NoRecord",
    "NoRoom",
    "NoSuchCut",
    "NoSuchImage",
    "NoSuchJob",
    "NoSuchMigration",
    "NodeUnreachable",
    "NodesDiffer",
    "NotAGpuProcess",
    "NotAllKnown",
    "NotDeviceMemory",
    "NotDumped",
    "NotDurable",
    "NotLost",
    "NotOneCut",
    "NotOurs",
    "NotRead",
    "NotRestored",
    "NotSaveable",
    "NotSaved",
    "NotTakenBack",
    "OwnerEnded",
    "PeerGone",
    "PeerUnusable",
    "PiecesMissing",
    "PortInUse",
    "ProcessInfo",
    "ProcessLost",
    "ProcessReport",
    "Refused",
    "Report",
    "RestoreReport",
    "RolledBack",
    "RunBusy",
    "StagedGone",
    "StandsStill",
    "StepExists",
    "StillRuns",
    "StoreBusy",
    "StoreUnusable",
    "Stuck",
    "SwapFailed",
    "SwapReport",
    "TooFewNodes",
    "Unanswered",
    "UnsafeRuntime",
    "UnsupportedState",
    "UsageError",
    "WrongDevice",
    "WrongImage",
    "WrongKey",
    "WrongState",
    "WrongVersion",
    "__version__",
    "attach",
    "images",
    "jobs",
    "restore",
    "run",
    "swap",
]

_LIBRARY = ("attach", "images", "jobs", "restore", "run", "swap")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'gcr' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gcr.{_home(name)}"), name)


def _home(name: str) -> str:
    """The module that has what is exported."""
    if name == "Job":
        return "library.job"
    if name == "NextJob":
        return "api.requests"
    if name in _LIBRARY:
        return "library.calls"
    if name.endswith("Info"):
        return "api.listings"
    if name.endswith("Report"):
        return "api.reports"
    words = "errors losterrors imageerrors serveerrors clustererrors exchangeerrors cuterrors migrationerrors"
    homes = words.split()
    return next(home for home in homes if name in vars(importlib.import_module(f"gcr.{home}")))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
