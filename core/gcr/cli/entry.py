"""Where the command `gcr` begins: Ctrl-C is minded before there is a command that could mind it."""

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
