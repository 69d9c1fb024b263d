"""The answer of a gcr command that was run with --json."""

import json
from collections.abc import Mapping
from typing import Any

from gcr.errors import GcrError
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
