"""Starts a command of gcr in the background: it says as JSON once it is ready, and goes on."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from select import select
from threading import Thread
from typing import Any

from gcr.errors import DeadlinePassed
from gcr.library.answers import checked
from gcr.rendezvous.launch import open_log

READY_S = 30.0


def begun(command: str, words: Sequence[str], timeout: float | None) -> Mapping[str, Any]:
    """Returns the answer of a command that goes on in a session of its own, with its words in the log `COMMAND.log`.

    timeout: seconds until it has answered, else READY_S. Raises its error; DeadlinePassed, once it was ended.
    """
    with open_log(f"{command}.log") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gcr", "--json", command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    assert process.stdout
    limit = READY_S if timeout is None else timeout
    if not select([process.stdout], [], [], limit)[0]:
        process.kill()
        process.wait()
        raise DeadlinePassed(f"gcr {command} is not ready after {limit:g} s")
    with process.stdout as answers:
        said = answers.readline()
    ending = Thread(target=process.wait, name="gcr-reap", daemon=True)
    ending.start()
    if not said:
        ending.join(limit)
    return checked(command, process.returncode or 0, said)
