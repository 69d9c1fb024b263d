"""gcr's backend for AMD GPUs: VMM hand-over for the data through hip-python, 7.2 or 10.

Importing this package loads no vendor library; the first use of a backend does. Shown on a simulated runtime with the
real ABI only: no AMD hardware has run it yet.
"""

from gcr.backend import Backend
from gcr.hookspecs import hookimpl
from gcr_amd.backend import AmdBackend

__all__ = ["AmdBackend", "gcr_backends"]


@hookimpl
def gcr_backends() -> list[Backend]:
    return [AmdBackend()]
