"""Every error of gcr by its code: a process rebuilds from it an error that crossed a socket."""

import gcr.clustererrors
import gcr.cuterrors
import gcr.exchangeerrors  # a subclass is found once its module is loaded
import gcr.imageerrors
import gcr.losterrors
import gcr.migrationerrors
import gcr.serveerrors  # noqa: F401
from gcr.errors import GcrError


def all_errors() -> dict[str, type[GcrError]]:
    """Every error by code; used to rebuild an error that crossed a socket."""
    found: dict[str, type[GcrError]] = {}
    kinds: list[type[GcrError]] = [GcrError]
    while kinds:
        kind = kinds.pop()
        found[kind.code] = kind
        kinds.extend(kind.__subclasses__())
    return found
