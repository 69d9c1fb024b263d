"""The operations on device memory of a process that is on its way here from another node (gcr.worker.coming)."""

from gcr.protocol.operations.worker import Bytes, HeldIds, OfCopy

COMING = 0  # the transaction of the copy by which the memory is laid out; no checkpoint has it


class Fit(OfCopy[HeldIds], frozen=True):
    """Memory of a process that is coming becomes that of the copy's table. Gives the handles that keep their bytes."""

    op = "fit"


class Inherit(OfCopy[Bytes], frozen=True):
    """Memory that came under the hold `coming` is that of a process, resident beside the copy. Gives its bytes."""

    op = "inherit"

    coming: str
