"""Commands of gcr that a step runs, as a user would. They end with this helper."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    return _answer(words[0], _started(["-m", "gcr", "--json", *words], subprocess.DEVNULL), limit, None)


@contextmanager
def ready(*words: str, imports: Sequence[str]) -> Iterator[Callable[[float], Mapping[str, Any]]]:
    """Starts a gcr command that waits within the block until what is yielded is called, which is as `asked` then.

    It ends with the block where it was not called. imports: modules that it imports meanwhile. Raises Interrupted.
    """
    process = _started(["-m", "gcr.cli.ready", *imports, "--", "--json", *words], subprocess.PIPE)
    try:
        yield lambda limit: _answer(words[0], process, limit, b"go\n")
    finally:
        if process.returncode is None:
            _interrupt(process)
        with _lock:
            _running.discard(process)
        for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
            pipe.close()


def _started(words: Sequence[str], stdin: int) -> "subprocess.Popen[bytes]":
    with _lock:
        if _ending:
            raise Interrupted("the caller has left")
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, *words], stdin=stdin, stdout=pipe, stderr=pipe, cwd="/")
        _running.add(process)
        return process


def _answer(command: str, process: "subprocess.Popen[bytes]", limit: float, said: bytes | None) -> Mapping[str, Any]:
    try:
        answer, error = process.communicate(said, timeout=limit)
    except subprocess.TimeoutExpired as late:
        _interrupt(process)
        raise DeadlinePassed(f"gcr {command} has not answered for {limit:g} s") from late
    finally:
        with _lock:
            _running.discard(process)
    return checked(command, process.returncode, answer, error)


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
