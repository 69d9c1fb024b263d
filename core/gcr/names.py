"""The syntax of names that users choose, and which one was meant."""

import re
from collections.abc import Iterable

JOB_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}\Z")
"""Names of jobs. A number is never one: it is a pid."""

BACKEND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
"""Names of backends. One never looks like an option of the command line."""

DEFAULT_BACKEND = "nvidia"
"""The vendor of a job until its first process names another, and of a process that shows none."""


def meant(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean llm?`, to end a message with, where a name is near enough; else nothing."""
    from difflib import get_close_matches  # only where something is wrong already

    found = get_close_matches(wrong, sorted(set(known)), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""
