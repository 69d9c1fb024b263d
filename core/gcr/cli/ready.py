"""`python -m gcr.cli.ready MODULE… -- WORDS…`: the command `gcr WORDS…`, started before it is wanted.

It imports the modules, and waits for a line on its standard input. Then it is that command, with no input. Where the
input ends before, or Ctrl-C comes, it ends and has done nothing. A command with the hidden option WHEN_TOLD begins at
once, and calls `await_word` itself, once it can do nothing more before.
"""

import os
import sys
from importlib import import_module

INTERRUPTED = 130
WHEN_TOLD = "--when-told"


def await_word() -> None:
    """Waits for a line on the standard input, which has nothing from then on. Raises EOFError where it ends before."""
    if not sys.stdin.buffer.readline():
        raise EOFError("the input ended before the word")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def main() -> None:
    try:
        import gcr.starting
        from gcr.cli.main import program

        border = sys.argv.index("--")
        for module in sys.argv[1:border]:
            import_module(module)
        gcr.starting.imported()
        sys.argv[1:] = sys.argv[border + 1 :]
        if WHEN_TOLD not in sys.argv:
            await_word()
    except (EOFError, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    program()


if __name__ == "__main__":
    main()
