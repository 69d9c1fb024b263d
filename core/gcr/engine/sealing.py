"""The sealed copy of a process: its table, which names every mapping, and the segments that hold the bytes."""

from gcr.engine.target import Target
from gcr.protocol.operations.worker import ProcessFacts
from gcr.protocol.seqpacket import close_all


def seal(target: Target, lay_out: bool = False, partial: bool = False) -> list[int]:
    """Returns the sealed table and the segments of each device; the caller's. `partial`: for an image alone."""
    fds: list[int] = []
    try:
        for worker in target.workers():
            if lay_out:
                specs = [each.spec for each in target.books.table.of_device(worker.device)]
                worker.copies.lay_out(target.copy_name, target.owner, specs)
            fds += worker.copies.seal(target.copy_name, about(target), partial)
    except BaseException:
        close_all(fds)
        raise
    return fds


def about(target: Target) -> ProcessFacts:
    identity, table = target.process.identity, target.books.table
    return ProcessFacts(
        job=target.process.job,
        pid=identity.pid,
        start_time=identity.start_time,
        transaction=target.transaction,
        ordinals=dict(table.ordinals),
        mappings=tuple((m.id, m.address, m.offset, m.size, m.read_devices, m.write_devices) for m in table.mappings()),
    )
