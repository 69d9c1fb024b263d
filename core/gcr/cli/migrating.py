"""Jobs of this node that are moving to another one, or from one, as `gcr ps` shows them: no daemon is asked."""

from typing import Any

from gcr.job.migrations import Migration, Migrations
from gcr.job.mover import Fate


def found() -> list[Migration]:
    """Returns the migrations that are not over here. Raises UnsafeRuntime, OSError."""
    return Migrations.here().readable()


def row(moving: Migration) -> dict[str, Any]:
    """Returns the object of --json."""
    return {
        "job": moving.job,
        "id": moving.id,
        "stage": moving.stage.value,
        "source": moving.source,
        "target": moving.target,
        "mover": moving.fate.value,
        "command": moving.command,
    }


def said(moving: Migration) -> str:
    """Returns the line for people: where the job moves, and what to do."""
    head = f"{moving.job} is moving from {moving.source} to {moving.target} ({moving.stage})"
    if moving.fate is Fate.ALIVE:
        return head
    if moving.may_return:
        return f"{head}; its command has died: gcr recover brings it back here"
    died = "its command has died" if moving.fate is Fate.GONE else "if its command has died"
    return f"{head}; {died}: {moving.command}"
