"""Facts for a test that failed: the logs that gcr left, and processes that still run there, thread by thread."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOG_BYTES = 6000  # of each log, its last


def logs_below(folder: Path) -> str:
    return "".join(told(log) for log in sorted(folder.rglob("*.log")))


def told(log: Path) -> str:
    """Returns the end of a log under its name; nothing of one that is not there."""
    return f"==== {log.name}\n{log.read_text(errors='replace')[-LOG_BYTES:]}\n" if log.exists() else ""


def processes_of(folder: Path) -> str:
    """Describes the processes that were started with this folder in their environment."""
    return "".join(_described(process) for process in _with_environment(str(folder)))


def _with_environment(folder: str) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if folder.encode() in (process / "environ").read_bytes():
                yield process


def _described(process: Path) -> str:
    words = " ".join(_read(process / "cmdline").replace("\0", " ").split())[:200]
    threads = [_thread(each) for each in sorted((process / "task").glob("*"))]
    return f"==== process {process.name}: {words}\n" + "".join(threads)


def _thread(thread: Path) -> str:
    """Its name and state, where the kernel holds it, and the system call that it is in, with its arguments."""
    facts = [_read(thread / name).strip() for name in ("comm", "stat", "wchan", "syscall")]
    facts[1] = facts[1].rpartition(")")[2][1:2]  # the state alone
    return f"  {thread.name} {' '.join(facts)}\n"


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        return str(error.strerror)
