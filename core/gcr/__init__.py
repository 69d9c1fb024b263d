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
    from gcr.errors import GcrError
    from gcr.library import Job, attach, run, swap
    from gcr.report import CheckpointReport, ProcessReport, Report, RestoreReport, SwapReport

__all__ = [
    "CheckpointReport",
    "GcrError",
    "Job",
    "ProcessReport",
    "Report",
    "RestoreReport",
    "SwapReport",
    "__version__",
    "attach",
    "run",
    "swap",
]

_HOME = {
    "GcrError": "errors",
    "Job": "library",
    "attach": "library",
    "run": "library",
    "swap": "library",
    "CheckpointReport": "report",
    "ProcessReport": "report",
    "Report": "report",
    "RestoreReport": "report",
    "SwapReport": "report",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gcr' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gcr.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
