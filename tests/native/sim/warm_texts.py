"""Programs of the simulator's tests without the start of an interpreter: a warm process forks each `python -c TEXT`.

A text begins with the star import of a module of calls, which the warm process has imported. There is one for each such
module and each environment at the start; it is begun with the second program, for many environments have one alone.
"""

import atexit
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "e2e"))

import warm_fork
from warm_popen import READ_AT_THE_START, WarmPopen, is_plain

PROGRAM = Path(__file__).with_name("warm_text.py")
IMPORTED = {"gpu": ("gpu", "pynvml"), "acl_calls": ("acl_calls",), "hip_calls": ("hip_calls",)}
SECOND = 2
ENDING_SECONDS = 10.0

Key = tuple[str, int, tuple[tuple[str, str], ...]]
_programs = Counter[Key]()


class WarmText(WarmPopen):
    """Forks `python -c TEXT` from a warm process, and starts all others as ever."""

    def _line(self, words: Sequence[str], env: Mapping[str, str], asked: Mapping[str, Any]) -> socket.socket | None:
        calls = re.search(r"^from (\w+) import \*$", words[2], re.MULTILINE) if words[1] == "-c" else None
        if calls is None or calls[1] not in IMPORTED or not is_plain(asked) or not warm_fork.possible():
            return None
        if "LD_PRELOAD" in env:  # a library that sees the start of a program
            return None
        settings = {name: value for name, value in env.items() if not name.startswith(("GCR_", "PYTEST_"))}
        key = (calls[1], os.getpid(), tuple(sorted(at_the_start(settings).items())))
        _programs[key] += 1
        return _begun(*key) if _programs[key] >= SECOND else None


def at_the_start(env: Mapping[str, str]) -> dict[str, str]:
    """Returns what an interpreter, libc or a binding reads before the text runs."""
    return {name: value for name, value in env.items() if name.startswith((*READ_AT_THE_START, "ROCM_"))}


@cache
def _begun(calls: str, _owner: int, settings: tuple[tuple[str, str], ...]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: value for name, value in os.environ.items() if name not in at_the_start(os.environ)}
    with theirs:
        command = [sys.executable, str(PROGRAM), str(theirs.fileno()), *IMPORTED[calls]]
        process = subprocess.Popen(command, env=kept | dict(settings), pass_fds=[theirs.fileno()])
    atexit.register(_end, ours, process)
    return ours


def _end(line: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    line.close()
    process.wait(ENDING_SECONDS)
