"""The table of descriptors does not grow while a program stands: each growth waits for every processor."""

import subprocess
import sys

SCRIPT = """
import fcntl, os, resource, sys
from gcr import descriptors
step, (soft, hard, room) = sys.argv[1], map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
before = sorted(os.listdir("/proc/self/fd"))
getattr(descriptors, step)(room)
assert sorted(os.listdir("/proc/self/fd")) == before
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(*resource.getrlimit(resource.RLIMIT_NOFILE), int(status["FDSize"]))
"""


def raised(soft: int, hard: int, room: int, step: str = "raise_limit") -> list[int]:
    """Returns the soft limit, the hard one, and the size of the kernel's table."""
    command = [sys.executable, "-c", SCRIPT, step, *map(str, (soft, hard, room))]
    return [int(word) for word in subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()]


def test_the_table_is_as_large_as_was_asked_for() -> None:
    assert raised(64, 4096, 4000) == [4096, 4096, 4096]


def test_a_lower_limit_bounds_the_table() -> None:
    assert raised(64, 512, 4000) == [512, 512, 512]


def test_a_table_that_is_made_for_later_leaves_the_limit() -> None:
    assert raised(64, 4096, 4000, "make_room") == [64, 4096, 4096]
