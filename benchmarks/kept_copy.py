"""Swaps of a job of which a share has changed since the last one, with the copy that it left behind and without."""

import time
from collections.abc import Iterator, Sequence

from program import Program, daemons_with, stop_daemon
from swaps import SETTLE_SECONDS, Row, cycle

SHARES = (0.0, 0.01, 0.1, 1.0)
CYCLES = 2
KEEP_COPY = "GCR_KEEP_COPY"


def measure(
    command: Sequence[str], settle: float = SETTLE_SECONDS, cycles: int = CYCLES
) -> Iterator[dict[str, list[Row]]]:
    """Yields rows of a checkpoint and its restore, more with each result. `fresh`: copies all · `kept`: does not.

    A row's `share` of the chunks has changed just before. In the first row of each way it is None: no copy is left yet.
    """
    ways: dict[str, list[Row]] = {}
    for way, setting in (("fresh", "0"), ("kept", "1")):
        stop_daemon()
        rows = ways[way] = []
        with daemons_with(KEEP_COPY, setting), Program(command, job="kept") as program:
            time.sleep(max(0.0, settle - (time.monotonic() - program.started)))
            rows.append({"share": None, **cycle(program, program.ask(), 0)})
            for share in SHARES:
                for number in range(cycles):
                    if share:
                        program.ask(f"touch {share} {number + 1}")
                    rows.append({"share": share, **cycle(program, program.ask(), number)})
                    yield ways
