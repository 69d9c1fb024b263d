"""gcr's backend for acme. Importing it loads no vendor library: the first call of a backend's method does."""

from gcr.backend import Backend
from gcr.hookspecs import hookimpl
from gcr_acme.backend import AcmeBackend

__all__ = ["AcmeBackend", "gcr_backends"]


@hookimpl
def gcr_backends() -> list[Backend]:
    return [AcmeBackend()]
