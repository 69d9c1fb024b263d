"""The end of a gcr process, with its own exit code at any moment of its threads.

A thread that reads from a socket may end just as the interpreter does. CPython 3.11 then frees what that thread still
uses, and the process ends by SIGSEGV: seen in one of some hundred `gcr run` whose program was killed.
"""

import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process. What was printed is written out, nothing else is tidied up; the kernel does that."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, full, or none at all
            stream.flush()
    os._exit(code)
