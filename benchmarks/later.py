"""A restore long after its checkpoint, by a process that outlives the command that began it.

    python later.py FOLDER SECONDS -- COMMAND...     is that process; `piece` starts it, and asks for what came out

Nothing is killed: that the worker is gone by then is its idle time's doing, if it is so.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import swaps
from program import Program, fill, gcr, stop_daemon

LATER_SECONDS = 600.0
BEGIN_SECONDS = 240.0
END_SECONDS = 60.0
NOT_YET = 3
POLL = 0.5
WARM_CYCLES = 3
IDLE_SECONDS = "60"  # of a worker
HERE = Path(__file__).resolve()


class NotYet(SystemExit):
    """The job is suspended and its time has not come. Exit code 3."""

    def __init__(self, left: float) -> None:
        print(f"not yet: ask again in {left:.0f} s", file=sys.stderr)
        super().__init__(NOT_YET)


def piece(gib: float) -> dict[str, Any]:
    """Begins, or brings what came out. Raises NotYet in between, SystemExit when it failed."""
    folder = Path(tempfile.gettempdir()) / f"gcr-later-{os.getuid()}"
    return begin_or_end(folder, LATER_SECONDS, fill(gib), (), {"GCR_WORKER_IDLE_S": IDLE_SECONDS})


def begin_or_end(
    folder: Path, seconds: float, command: Sequence[str], flags: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """`flags`: of `gcr run`; `environment`: besides ours, of everything that is started."""
    if not (folder / "pid").exists():
        _begin(folder, seconds, command, flags, environment)
        _await(folder, "suspended", BEGIN_SECONDS)
    left = json.loads(_await(folder, "suspended", BEGIN_SECONDS))["restore_at"] - time.time()
    if left > 0 and not (folder / "failed").exists():
        raise NotYet(left)
    result: dict[str, Any] = json.loads(_await(folder, "result", END_SECONDS))
    _clear(folder)
    return result


def _begin(
    folder: Path, seconds: float, command: Sequence[str], flags: Sequence[str], environment: Mapping[str, str]
) -> None:
    (folder / "run").mkdir(parents=True, mode=0o700)
    homes = {"XDG_RUNTIME_DIR": str(folder / "run"), "XDG_STATE_HOME": str(folder / "state")}
    words = [sys.executable, str(HERE), str(folder), str(seconds), *flags, "--", *command]
    log = (os.POSIX_SPAWN_OPEN, 1, folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    actions: Sequence[Any] = (nothing, log, (os.POSIX_SPAWN_DUP2, 1, 2))
    world = {**os.environ, **environment, **homes}
    _write(folder, "pid", os.posix_spawn(sys.executable, words, world, file_actions=actions, setsid=True))


def _await(folder: Path, what: str, seconds: float) -> str:
    """What it left, however it ended. Raises SystemExit with the end of its log."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if (folder / what).exists():
            return (folder / what).read_text()
        if (folder / "failed").exists() or not _lives(folder):
            break
        time.sleep(POLL)
    log = (folder / "log").read_text()[-2000:]
    _clear(folder)
    raise SystemExit(f"benchmark: no {what} of the process that should restore later:\n{log}")


def _lives(folder: Path) -> bool:
    stat = Path(f"/proc/{(folder / 'pid').read_text()}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _clear(folder: Path) -> None:
    """The next call begins anew; the last folder stays beside, with its logs."""
    folder.rename(folder.with_name(f"{folder.name}-{int(time.time() * 1000)}"))


def _write(folder: Path, name: str, value: object) -> None:
    part = folder / f".{name}"
    part.write_text(json.dumps(value))
    part.rename(folder / name)


def stay(folder: Path, seconds: float, command: Sequence[str], flags: Sequence[str]) -> None:
    with Program(command, job="later", flags=flags) as program:
        before = program.ask()
        time.sleep(min(swaps.SETTLE_SECONDS, seconds))
        warm = [swaps.cycle(program, before, number) for number in range(WARM_CYCLES)]
        swaps.checkpoint(program)
        suspended = time.time()
        _write(folder, "suspended", {"restore_at": suspended + seconds})
        time.sleep(seconds)
        workers = gcr("daemon", "status")["workers"]
        back = gcr("restore", "later")
        found = {
            "warm": warm,
            "seconds_suspended": time.time() - suspended,
            "workers_before": len(workers),
            **{f"in_{name}": back.get(name) for name in swaps.RESTORE},
            "bytes_right": program.ask() == before,
        }
    stop_daemon()
    _write(folder, "result", found)


def main() -> None:
    folder, seconds, rest = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    split = rest.index("--")
    try:
        stay(folder, seconds, rest[split + 1 :], rest[:split])
    except BaseException:
        traceback.print_exc()
        _write(folder, "failed", True)
        raise


if __name__ == "__main__":
    main()
