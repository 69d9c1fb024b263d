"""The start of the command `gcr`: it handles Ctrl-C before there is a command that could."""

import sys
from typing import NoReturn

_INTERRUPTED = 130


def program() -> NoReturn:
    """The command `gcr`, as a process of its own."""
    try:
        import gcr.starting
        from gcr.cli.main import program as run  # takes a tenth of a second, or many on a busy machine

        gcr.starting.imported()
        run()
    except KeyboardInterrupt:  # nothing was begun
        sys.exit(_INTERRUPTED)
