"""gcr's backend for Ascend NPUs: the process's own agent copies its data out and snapshots its control state.

Importing this package loads no vendor library; the first use of a backend does. Shown on a simulated runtime with the
real ABI only: no Ascend hardware has run it yet.
"""

from gcr.backend import Backend
from gcr.hookspecs import hookimpl
from gcr_ascend.backend import AscendBackend

__all__ = ["AscendBackend", "gcr_backends"]


@hookimpl
def gcr_backends() -> list[Backend]:
    return [AscendBackend()]
