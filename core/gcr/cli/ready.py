"""`python -m gcr.cli.ready MODULE… -- WORDS…`: the command `gcr WORDS…`, started before it is wanted.

It imports the modules, and waits for a line on its standard input. Then it is that command, with no input. Where the
input ends before, or Ctrl-C comes, it ends and has done nothing.
"""

import os
import sys
from importlib import import_module

INTERRUPTED = 130


def main() -> None:
    try:
        import gcr.starting
        from gcr.cli.main import program

        border = sys.argv.index("--")
        for module in sys.argv[1:border]:
            import_module(module)
        gcr.starting.imported()
        if not sys.stdin.buffer.readline():
            sys.exit(INTERRUPTED)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, sys.stdin.fileno())
        os.close(nothing)
        sys.argv[1:] = sys.argv[border + 1 :]
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    program()


if __name__ == "__main__":
    main()
