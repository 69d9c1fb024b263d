"""The operations of a save helper, which writes the shares of one process's saves."""

from gcr.checkpoints.share import Share
from gcr.image.pack.pace import Packing
from gcr.protocol.operations.operation import Count, Nothing, Operation, Size
from gcr.protocol.operations.operation import Ready as Ready

Placed = tuple[str, Count, Count, Count]
"""A file by its name, the number of its region, and offset and size in it."""


class LendRegion(Operation[Nothing], frozen=True):
    """Segments of a region from `offset` on, of `total`. `number`: of the region; `nbytes`: of all its memory."""

    op = "lend_region"
    takes = "the segments, in order"

    number: Count
    nbytes: Size
    sizes: tuple[Size, ...]
    offset: Count
    total: Size


class WriteShare(Operation[Share], frozen=True):
    """Files in the regions that were lent, as the share of one rank. The regions are let go with the answer.

    image: of the step · chunk_bytes, threads, going, packing: as of `write_files`
    """

    op = "write_share"
    takes = "the store's key, if it is encrypted"

    store: str
    encrypted: bool
    image: str
    chunk_bytes: Size
    threads: Size
    files: tuple[Placed, ...]
    going: tuple[str, ...]
    packing: Packing
