"""Waits of tests, each with an end."""

import time
from collections.abc import Callable

PATIENCE = 20.0


def wait_for(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Looks again and again; false when it did not come true in time."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False
