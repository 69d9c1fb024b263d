"""What goes to stdout and stderr: one JSON object, or text for people. The only place that shapes either."""

import json
import sys
from collections.abc import Mapping

import click

from gcr.errors import GcrError, Lost, Refused, RolledBack
from gcr.jsonbody import error_to_json

SCHEMA = 1

_HEADLINES: tuple[tuple[type[GcrError], str], ...] = (
    (Refused, "refused, nothing was touched"),
    (RolledBack, "failed and rolled back"),
    (Lost, "the program cannot continue"),
)


def success(command: str, fields: Mapping[str, object]) -> dict[str, object]:
    """The object a command prints under --json when it did what was asked."""
    return {"schema": SCHEMA, "command": command, "ok": True, **fields}


def failure(command: str, error: GcrError) -> dict[str, object]:
    """The object any command prints under --json when it did not."""
    return {"schema": SCHEMA, "command": command, "ok": False, "error": error_to_json(error)}


def print_json(document: Mapping[str, object]) -> None:
    """Exactly one object on stdout."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def print_failure(error: GcrError) -> None:
    """The headline says whether the target was touched; then what happened, then what to do."""
    headline = next((text for kind, text in _HEADLINES if isinstance(error, kind)), "")
    lines = [error.message, *getattr(error, "__notes__", [])]
    if error.hint:
        lines.append(f"try: {error.hint}")
    if not headline:
        headline = lines.pop(0)
    click.echo("\n".join([f"gcr: {headline}", *(f"  {line}" for line in lines)]), err=True)
