"""The speed of the link: a plain pinned copy each way, measured while no transaction waits."""

import logging

from msgspec import Struct, field
from msgspec.structs import replace

from gcr.drain import DataDrain, HandleSpec, Span
from gcr.errors import GcrError
from gcr.memory.arena import Arena
from gcr.protocol.channel import Request
from gcr.protocol.operations.operation import Progress
from gcr.worker.attachment import Attachment

log = logging.getLogger("gcr.worker")

SAMPLE = 64 << 20  # of the device beside a running program: little, and only where there is plenty
PLENTY = 8 * SAMPLE
ROUNDS = 3
TIMEOUT = 30.0
OWNER = "link"  # in the arena; no process has this name
OUT, IN = "link_out_bytes_per_s", "link_in_bytes_per_s"


class Link(Struct):
    """The link of a worker's device, with its `speeds` once they are measured."""

    attachment: Attachment
    arena: Arena
    speeds: dict[str, float] = field(default_factory=dict)

    def measure(self) -> None:
        if not self.speeds and self.attachment.attached:
            self.speeds = measure_link(self.attachment.drain, self.arena)

    def teller(self, request: Request, which: str) -> Progress:
        """Returns a progress callback that adds the speed of the link, once it was measured."""
        return lambda done: request.progress(replace(done, link_bytes_per_s=self.speeds.get(which)).to_json())


def measure_link(drain: DataDrain, arena: Arena) -> dict[str, float]:
    """Returns `link_out_bytes_per_s` and `link_in_bytes_per_s`, the best of a few rounds; empty without room."""
    memory = drain.memory()
    if memory.total - memory.used < PLENTY:
        return {}
    try:
        segments = arena.take(OWNER, SAMPLE)
    except GcrError as error:
        log.info("link not measured: %s", error)
        return {}
    try:
        size = min(SAMPLE, segments.parts[0].size)
        where = drain.create([HandleSpec(1, size)])
        try:
            span = [Span(where.address, segments.parts[0].address, size)]
            drain.write(span).wait(TIMEOUT)
            out = min(drain.read(span).wait(TIMEOUT) for _ in range(ROUNDS))
            back = min(drain.write(span).wait(TIMEOUT) for _ in range(ROUNDS))
        finally:
            drain.release(where)
        return {OUT: size / out, IN: size / back}
    except GcrError as error:
        log.info("link not measured: %s", error)
        return {}
    finally:
        arena.give_back(segments)
        arena.end(OWNER)
