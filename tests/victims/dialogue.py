"""How a victim talks: `ready`, then a line for each line asked."""

import sys
from collections.abc import Callable


def say(text: str) -> None:
    print(text, flush=True)


def note(text: str) -> None:
    """What may differ from run to run."""
    print(text, file=sys.stderr, flush=True)


def serve(answer: Callable[[], str]) -> None:
    say("ready")
    for _line in sys.stdin:
        say(answer())
