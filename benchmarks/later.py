"""A restore long after its checkpoint, by a process that outlives the command that began it.

    python later.py FOLDER SECONDS -- COMMAND...     is that process; `piece` starts it, and asks for what came out

Nothing is killed: that the worker is gone by then is its idle time's doing, if it is so.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import swaps
from outlive import NotYet, Outliving
from program import Program, fill, gcr

LATER_SECONDS = 600.0
BEGIN_SECONDS = 240.0
END_SECONDS = 60.0
WARM_CYCLES = 3
IDLE_SECONDS = "60"  # of a worker
HERE = Path(__file__).resolve()


def piece(gib: float) -> dict[str, Any]:
    """Begins, or brings what came out. Raises NotYet in between, SystemExit when it failed."""
    return begin_or_end(Outliving.named("later"), LATER_SECONDS, fill(gib), (), {"GCR_WORKER_IDLE_S": IDLE_SECONDS})


def begin_or_end(
    later: Outliving, seconds: float, command: Sequence[str], flags: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """`flags`: of `gcr run`; `environment`: besides ours, of everything that is started."""
    if not later.began:
        later.begin([str(HERE), str(seconds), *flags, "--", *command], environment)
    left = json.loads(later.wait("suspended", BEGIN_SECONDS))["restore_at"] - time.time()
    if left > 0 and not later.ended:
        raise NotYet(left)
    result: dict[str, Any] = json.loads(later.wait("result", END_SECONDS))
    later.clear()
    return result


def stay(later: Outliving, seconds: float, command: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    with Program(command, job="later", flags=flags) as program:
        before = program.ask()
        time.sleep(min(swaps.SETTLE_SECONDS, seconds))
        warm = [swaps.cycle(program, before, number) for number in range(WARM_CYCLES)]
        swaps.checkpoint(program)
        suspended = time.time()
        later.leave("suspended", {"restore_at": suspended + seconds})
        time.sleep(seconds)
        workers = gcr("daemon", "status")["workers"]
        back = gcr("restore", "later")
        return {
            "warm": warm,
            "seconds_suspended": time.time() - suspended,
            "workers_before": len(workers),
            **{f"in_{name}": back.get(name) for name in swaps.RESTORE},
            "bytes_right": program.ask() == before,
        }


def main() -> None:
    later, seconds, rest = Outliving(Path(sys.argv[1])), float(sys.argv[2]), sys.argv[3:]
    split = rest.index("--")
    later.work(lambda: stay(later, seconds, rest[split + 1 :], rest[:split]))


if __name__ == "__main__":
    main()
