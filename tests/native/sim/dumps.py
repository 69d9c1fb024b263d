"""CRIU's command line, for tests: a process is saved and ended, and comes back under its pid."""

import ctypes
import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CRIU = ROOT / "build/criu/criu"
DEADLINE = 60.0
PR_SET_CHILD_SUBREAPER = 36


class Refused(Exception):
    """CRIU did not do it; the text has the errors of its log."""


def skip_without_criu() -> None:
    if not CRIU.exists():
        pytest.skip("CRIU was not fetched to build/criu")
    if "gVisor" in Path("/proc/version").read_text():
        pytest.skip("CRIU cannot work on gVisor")
    if os.geteuid() != 0:
        pytest.skip("CRIU needs root")


def adopt_orphans(wanted: bool) -> None:
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0


class Dumps:
    """The images of one process, the last one in use. `close` ends the process that came back.

    What CRIU brings back becomes a child of ours: pid 1 may take seconds to reap it, and its pid is in use so long.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._back = 0
        adopt_orphans(True)

    @property
    def images(self) -> Path:
        return self._folder / f"images{self._count}"

    def save(self, pid: int) -> None:
        """Returns once the process is saved and has ended. The caller reaps one that did not come from here."""
        self._count += 1
        self.images.mkdir()
        self._criu("dump", "--tree", str(pid))
        self._reap()

    def bring_back(self) -> None:
        self._criu("restore", "--restore-detached", "--pidfile", str(self.images / "pid"))
        self._back = int((self.images / "pid").read_text())

    def close(self) -> None:
        if self._back:
            os.kill(self._back, signal.SIGKILL)
            self._reap()
        adopt_orphans(False)

    def _reap(self) -> None:
        if self._back:
            os.waitpid(self._back, 0)
        self._back = 0

    def _criu(self, action: str, *arguments: str) -> None:
        log = self.images / f"{action}.log"
        command = [CRIU, action, "--images-dir", self.images, "--log-file", log, "-v4", *arguments]
        done = subprocess.run(command, check=False, timeout=DEADLINE, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Refused("\n".join(line for line in log.read_text().splitlines() if "Error" in line))
