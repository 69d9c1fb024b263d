"""The answer of a gcr command that was run with --json."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gcr.errors import DeadlinePassed, GcrError
from gcr.protocol.jsonbody import error_from_json


def checked(command: str, code: int, said: bytes, error: bytes = b"") -> Mapping[str, Any]:
    """Returns the answer. Raises the error that it tells of; GcrError, with the text on stderr, where there is none."""
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        text = error.decode(errors="replace").strip()
        raise GcrError(f"gcr {command} ended with code {code}, and no answer{': ' if text else ''}{text}") from None
    if not answer["ok"]:
        raise error_from_json(answer["error"])
    return answer


def asked(
    words: Sequence[str], limit: float, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> Mapping[str, Any]:
    """Returns the answer of a gcr command. Raises its error, or DeadlinePassed after `limit` seconds.

    environment: all variables of the command · folder: where it runs; None: as this process
    """
    command = [sys.executable, "-m", "gcr", "--json", *words]
    try:
        said = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, env=environment, cwd=folder
        )
    except subprocess.TimeoutExpired as late:
        raise DeadlinePassed(f"gcr {words[0]} has not answered for {limit:g} s") from late
    return checked(words[0], said.returncode, said.stdout, said.stderr)
