"""The actor's own part: this node's gcr, for programs on other nodes. It decides nothing.

Ray kills the children of an actor with it, gives them variables of its own, and has the kernel end them first when
memory is short. So gcr's daemon, which holds the memory of suspended jobs, is started by a command that ends, with the
environment and the place in that line that `ray start` had.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gcr.cluster import exchanges, hardware
from gcr.cluster.carrying import Carrier, end, facts, start_daemon, started
from gcr.cluster.hardware import Hardware
from gcr.cluster.keys import Keys
from gcr.cluster.plugins import Program, Word
from gcr.errors import GcrError, typed

_OF_JOB = ("GCR_JOB", "GCR_TOKEN")
_SHIM = "libgcr_shim.so"


class GcrNode:
    """The methods of a node's actor. Its answers are JSON, as a daemon's are: another version of gcr may read them."""

    def __init__(self) -> None:
        self._carrier = Carrier()
        self._hardware: Hardware | None = None  # asked once: no driver changes while its devices are in use

    def facts(self) -> dict[str, Any]:
        """Returns what this node is, and starts its daemon where none runs; or what went wrong."""
        try:
            _take_oom_score_of_parent()
            start_daemon(node_environment())
            self._hardware = self._hardware or hardware.found(node_environment())
            return {"facts": facts(self._hardware).to_json()}
        except Exception as error:
            return {"error": Word.of_error(typed(error)).body}

    def carry(
        self, token: str, op: str, body: Mapping[str, Any], timeout: float
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for word in self._carrier.carried(token, op, body, timeout):
            yield word.kind, word.body

    def start(self, job: str, words: Sequence[str], folder: str, variables: Mapping[str, str]) -> dict[str, Any]:
        """Returns the log of the part that was started, or what went wrong."""
        try:
            _take_oom_score_of_parent()
            return {"log": started(job, Program(words, folder, variables), node_environment())}
        except Exception as error:
            return {"error": Word.of_error(typed(error)).body}

    def end(self, job: str, run: str) -> None:
        end(job, run)

    def offer(self, keys: Mapping[str, str], host: str, port: int) -> dict[str, Any]:
        """Returns the address of this node's exchange, which runs with these keys from now on, or what went wrong."""
        try:
            _take_oom_score_of_parent()
            return {"exchange": exchanges.begin(Keys.from_json(keys), host, port, node_environment())}
        except Exception as error:
            return {"error": Word.of_error(typed(error)).body}

    def offer_no_more(self) -> None:
        exchanges.end()

    def withdraw(self, token: str) -> None:
        self._carrier.withdraw(token)


def node_environment() -> dict[str, str]:
    """Returns the environment that `ray start` was given on this node: that of this worker's parent.

    Raises GcrError where Ray started this process in another way.
    """
    parent = os.getppid()
    try:
        words = Path(f"/proc/{parent}/environ").read_bytes().split(b"\0")
    except OSError as error:
        raise GcrError(f"the environment of Ray's process {parent} cannot be read: {error}") from error
    pairs = (word.decode(errors="surrogateescape").partition("=") for word in words if b"=" in word)
    return of_user({name: value for name, _, value in pairs})


def of_user(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns it without Ray's variables, and without the job of gcr that `ray start` may be the program of.

    Else a command of gcr that asks a driver would be a process of that job.
    """
    found = {name: value for name, value in environment.items() if not name.startswith("RAY_") and name not in _OF_JOB}
    preloaded = [each for each in found.pop("LD_PRELOAD", "").split(":") if each and Path(each).name != _SHIM]
    return {**found, "LD_PRELOAD": ":".join(preloaded)} if preloaded else found


def _take_oom_score_of_parent() -> None:
    """Takes the parent's chance to be ended by the kernel. Ray raised ours, so the kernel lets any user lower it."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
