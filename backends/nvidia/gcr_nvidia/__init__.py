"""gcr's backend for NVIDIA GPUs: VMM hand-over for the data, the driver's checkpoint calls for the control state.

Importing this package loads no vendor library; the first use of a backend does.
"""

from gcr.backend import Backend
from gcr.hookspecs import hookimpl
from gcr_nvidia.backend import NvidiaBackend

__all__ = ["NvidiaBackend", "gcr_backends"]


@hookimpl
def gcr_backends() -> list[Backend]:
    return [NvidiaBackend()]
