"""Starting gcrd: detached, in a session of its own, with a scrubbed environment."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gcr.declarations import declarations
from gcr.errors import DaemonUnavailable, DeadlinePassed, UnsafeRuntime
from gcr.protocol.trust import connect_to_daemon
from gcr.runtime import log_dir, runtime_dir, socket_path

KEPT = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
KEPT_PREFIXES = ("GCR_", "XDG_")  # backends declare more; nothing that hides devices: other jobs may be on them
START_TIMEOUT = 20.0
LOG = "gcrd.log"


def daemon_environment() -> dict[str, str]:
    """Returns the environment of gcrd and its children: no LD_PRELOAD, nothing of the job that started it."""
    beginnings = (*KEPT_PREFIXES, *(name for each in declarations().values() for name in each.keeps))
    ours = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(beginnings)}
    for private in ("GCR_JOB", "GCR_TOKEN", "GCR_SIMULATE"):
        ours.pop(private, None)
    if path := ours.get("PYTHONPATH"):  # the daemon's working folder is /
        ours["PYTHONPATH"] = os.pathsep.join(str(Path(part).resolve()) for part in path.split(os.pathsep))
    return ours


def open_log(name: str | None) -> BinaryIO:
    """The log file of a child, to append to. Where it cannot be written nothing is: a log stops no work."""
    if name is not None:
        with suppress(OSError, UnsafeRuntime):
            return (log_dir() / name).open("ab")
    return Path(os.devnull).open("ab")


def start_module(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    fd: int | None = None,
    log: str | None = None,
    *,
    user: int | None = None,
    group: int | None = None,
    extra_groups: Sequence[int] | None = None,
) -> "subprocess.Popen[bytes]":
    """Starts a module of gcr in a session of its own, and its words go to a log. It inherits `fd`. Raises OSError."""
    with open_log(log) as out:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            pass_fds=() if fd is None else (fd,),
            start_new_session=True,
            cwd="/",
            user=user,
            group=group,
            extra_groups=extra_groups,
        )


def launch() -> None:
    """Start a daemon and wait until its socket answers. A second one that loses the race ends by itself."""
    await_socket(begin())


def begin(*options: str) -> "subprocess.Popen[bytes]":
    """Start a daemon, and wait for nothing. Raises UnsafeRuntime, OSError."""
    runtime_dir()
    child = start_module("gcr.daemon", options, daemon_environment(), log=LOG)
    threading.Thread(target=child.wait, name="gcr-reap", daemon=True).start()
    return child


def await_socket(child: "subprocess.Popen[bytes]") -> None:
    """Waits until a daemon answers, this one or another. Raises DaemonUnavailable."""
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end:
        with suppress(DaemonUnavailable, DeadlinePassed):
            connect_to_daemon(socket_path(), 1.0).close()
            return
        if child.poll() not in (None, 0):
            break
        time.sleep(0.02)
    raise DaemonUnavailable(f"gcrd did not start; {_log_in_words()}", hint="gcr doctor")


def _log_in_words() -> str:
    try:
        return f"see {log_dir() / LOG}"
    except UnsafeRuntime as error:
        return f"it can write no log: {error.message}"
