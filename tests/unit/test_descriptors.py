"""The table of descriptors does not grow while a program stands: each growth waits for every processor."""

import subprocess
import sys

SCRIPT = """
import fcntl, os, resource, sys
from gcr import descriptors
soft, hard, room = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
before = sorted(os.listdir("/proc/self/fd"))
descriptors.raise_limit(room)
assert sorted(os.listdir("/proc/self/fd")) == before
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(*resource.getrlimit(resource.RLIMIT_NOFILE), int(status["FDSize"]))
"""


def raised(soft: int, hard: int, room: int) -> list[int]:
    """Returns the soft limit, the hard one, and the size of the kernel's table."""
    command = [sys.executable, "-c", SCRIPT, *map(str, (soft, hard, room))]
    return [int(word) for word in subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()]


def test_the_table_is_as_large_as_was_asked_for() -> None:
    assert raised(64, 4096, 4000) == [4096, 4096, 4096]


def test_a_lower_limit_bounds_the_table() -> None:
    assert raised(64, 512, 4000) == [512, 512, 512]
