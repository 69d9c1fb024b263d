"""The step in a `checkpoint_id`."""

import os
import re

_LAST_NUMBER = re.compile(r"([0-9]+)\Z")


def step_of(checkpoint_id: str | int | os.PathLike[str]) -> int | None:
    """Returns the number at the end of `checkpoint_id`, such as 1000 of `runs/step-1000`; None if there is none."""
    found = _LAST_NUMBER.search(str(checkpoint_id).rstrip("/"))
    return int(found[1]) if found else None
