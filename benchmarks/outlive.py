"""A process that outlives the command which began it: what it does takes longer than a command may.

It runs in a session of its own, with a daemon of its own, and leaves what comes of it as files in a folder.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from program import stop_daemon

NOT_YET = 3
POLL = 0.5


class NotYet(SystemExit):
    """What was asked for has not come. Exit code 3."""

    def __init__(self, left: float) -> None:
        print(f"not yet: ask again in {left:.0f} s", file=sys.stderr)
        super().__init__(NOT_YET)


@dataclass(frozen=True)
class Outliving:
    folder: Path

    @staticmethod
    def named(name: str) -> "Outliving":
        return Outliving(Path(tempfile.gettempdir()) / f"gcr-{name}-{os.getuid()}")

    @property
    def began(self) -> bool:
        return (self.folder / "pid").exists()

    @property
    def ended(self) -> bool:
        return any((self.folder / name).exists() for name in ("result", "failed"))

    def begin(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """`words`: a Python file and its arguments, before which the folder is put."""
        (self.folder / "run").mkdir(parents=True, mode=0o700)
        homes = {"XDG_RUNTIME_DIR": str(self.folder / "run"), "XDG_STATE_HOME": str(self.folder / "state")}
        program, *more = words
        full = [sys.executable, program, str(self.folder), *more]
        log = (os.POSIX_SPAWN_OPEN, 1, self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        actions: Sequence[Any] = (nothing, log, (os.POSIX_SPAWN_DUP2, 1, 2))
        world = {**os.environ, **environment, **homes}
        self.leave("pid", os.posix_spawn(sys.executable, full, world, file_actions=actions, setsid=True))

    def ended_within(self, seconds: float) -> bool:
        give_up = time.monotonic() + seconds
        while not self.ended and self._lives() and time.monotonic() < give_up:
            time.sleep(POLL)
        return self.ended or not self._lives()

    def wait(self, what: str, seconds: float) -> str:
        """What it left, however it ended. Raises SystemExit with the end of its log."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            if (self.folder / what).exists():
                return (self.folder / what).read_text()
            if (self.folder / "failed").exists() or not self._lives():
                break
            time.sleep(POLL)
        log = (self.folder / "log").read_text()[-2000:]
        self.clear()
        raise SystemExit(f"no {what} of the process that outlives its command:\n{log}")

    def _lives(self) -> bool:
        stat = Path(f"/proc/{(self.folder / 'pid').read_text()}/stat")
        with contextlib.suppress(OSError):
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    def clear(self) -> None:
        """The next call begins anew; the last folder stays beside, with its logs."""
        self.folder.rename(self.folder.with_name(f"{self.folder.name}-{int(time.time() * 1000)}"))

    # ---- in the process itself --------------------------------------------------------------------------------

    def leave(self, name: str, value: object) -> None:
        part = self.folder / f".{name}"
        part.write_text(json.dumps(value))
        part.rename(self.folder / name)

    def work(self, work: Callable[[], object]) -> None:
        """Leaves its result; how it failed is in the log. Its daemon ends with it."""
        try:
            try:
                found = work()
            finally:
                stop_daemon()
            self.leave("result", found)
        except BaseException:
            traceback.print_exc()
            self.leave("failed", True)
            raise
