"""JSON Schemas (draft 2020-12) of everything gcr prints under --json; `error` is the failure object of every command.

`several` is the object of a checkpoint or a restore that was asked for more than one job.

Objects may gain fields; a reader ignores what it does not know.
"""

import importlib.resources
import json
from typing import Any

ERROR = "error"
SEVERAL = "several"


def load(command: str) -> dict[str, Any]:
    """The schema of a command's success object: "checkpoint", "daemon status". Raises FileNotFoundError for others."""
    found = importlib.resources.files(__name__).joinpath(f"{command.replace(' ', '-')}.json")
    document: dict[str, Any] = json.loads(found.read_text())
    return document
