"""Commands of gcr that a step runs, as a user would. They end with this helper."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

from gcr.errors import DeadlinePassed, Interrupted
from gcr.library.answers import checked

END_S = 20.0  # for a command to take back what it has begun

_running = set[subprocess.Popen[bytes]]()
_lock = Lock()
_ending = False


def asked(*words: str, limit: float) -> Mapping[str, Any]:
    """Returns the answer of a gcr command. Raises its error, DeadlinePassed after `limit` seconds, Interrupted."""
    with _lock:
        if _ending:
            raise Interrupted("the caller has left")
        process = subprocess.Popen(
            [sys.executable, "-m", "gcr", "--json", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
        )
        _running.add(process)
    try:
        said, error = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired as late:
        _interrupt(process)
        raise DeadlinePassed(f"gcr {words[0]} has not answered for {limit:g} s") from late
    finally:
        with _lock:
            _running.discard(process)
    return checked(words[0], process.returncode, said, error)


def end_all() -> None:
    """Ends the commands that run, as Ctrl-C does, and begins no more."""
    global _ending
    with _lock:
        _ending = True
        left = list(_running)
    for process in left:
        _interrupt(process)


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
