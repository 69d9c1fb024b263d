"""A daemon does not hand on what the shell that started it had set."""

import json
import os
import subprocess
import sys

import pytest

REPORT = """
import json, os, resource, sys
{before}
from gcr.daemon.limits import lift_limits
stays = lift_limits()
names = ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE")
soft = {{name: resource.getrlimit(getattr(resource, name))[0] for name in names}}
print(json.dumps({{"stays": stays, "processors": len(os.sched_getaffinity(0)), "nice": os.nice(0), **soft}}))
"""


def lifted(*before: str) -> dict[str, object]:
    script = REPORT.format(before="\n".join(before))
    return json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)


def limit(name: str, soft: int, hard: str = "-1") -> str:
    return f"resource.setrlimit(resource.{name}, ({soft}, {hard}))"


def test_soft_limits_are_lifted_to_the_hard_ones() -> None:
    found = lifted(
        limit("RLIMIT_AS", 1 << 32, "resource.getrlimit(resource.RLIMIT_AS)[1]"),
        limit("RLIMIT_FSIZE", 1 << 20, "resource.getrlimit(resource.RLIMIT_FSIZE)[1]"),
        limit("RLIMIT_NOFILE", 64, "256"),
    )
    assert found["RLIMIT_NOFILE"] == 256
    assert found["RLIMIT_AS"] != 1 << 32 and found["RLIMIT_FSIZE"] != 1 << 20


def test_a_hard_limit_is_named() -> None:
    stays = lifted(limit("RLIMIT_FSIZE", 1 << 20, str(1 << 30)))["stays"]
    assert isinstance(stays, list)
    assert f"file size (ulimit -f) is limited to {1 << 30}" in stays


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor cannot be narrowed")
def test_a_set_of_processors_is_widened() -> None:
    found = lifted("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})")
    assert found["processors"] == len(os.sched_getaffinity(0))


def test_niceness_is_taken_back_or_named() -> None:
    found = lifted("os.nice(5)")
    nice = found["nice"]
    assert nice == 0 or f"niceness is {nice}" in str(found["stays"])
