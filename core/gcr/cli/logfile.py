"""The command line's log file, which receives the traceback of a bug."""

import logging
import logging.handlers

from gcr import runtime
from gcr.errors import GcrError

NAME = "cli.log"
_MAX_BYTES = 1 << 20


def bug(error: Exception) -> GcrError:
    """A bug in gcr: the traceback goes to the log, one line to the user."""
    return GcrError(f"a bug in gcr: {error!r} (traceback in {write_traceback(error)})")


def write_traceback(error: BaseException) -> str:
    """Append the traceback to the log; returns the log's path, or why there is none."""
    try:
        path = runtime.log_dir() / NAME
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=_MAX_BYTES, backupCount=2)
    except (GcrError, OSError) as unwritable:
        return f"no log: {unwritable}"
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"))
    info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("gcr.cli", logging.ERROR, __file__, 0, "unexpected", None, info)
    handler.emit(record)
    handler.close()
    return str(path)
