"""Limits that the daemon inherits from its shell, and would hand on to every later job: it lifts or names them.

Each soft limit is raised to its hard one, every processor that the kernel allows is used, and niceness is taken back.
The other limits are returned in words for the log, which explains a later refusal for want of room.
"""

import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from gcr import descriptors

_LIMITS: Mapping[str, int] = {
    "address space (ulimit -v)": resource.RLIMIT_AS,
    "data (ulimit -d)": resource.RLIMIT_DATA,
    "file size (ulimit -f)": resource.RLIMIT_FSIZE,
    "processor time (ulimit -t)": resource.RLIMIT_CPU,
}
_LIFTED = (*_LIMITS.values(), resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
_OOM = Path("/proc/self/oom_score_adj")


def lift_limits() -> list[str]:
    """Lift what may be lifted. Returns what stays, and so is every job's."""
    descriptors.raise_limit()
    for limit in _LIFTED:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (hard, hard))
    return [*_limited(), *_processors(), *_niceness(), *_out_of_memory()]


def _limited() -> Iterator[str]:
    for name, limit in _LIMITS.items():
        if (hard := resource.getrlimit(limit)[1]) != resource.RLIM_INFINITY:
            yield f"{name} is limited to {hard}"


def _processors() -> Iterator[str]:
    """Allows all processors; the kernel leaves out those that a cgroup's cpuset forbids."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    except (OSError, ValueError) as error:
        yield f"{len(before)} processors may be used: {error}"


def _niceness() -> Iterator[str]:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice <= 0:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except OSError:
        yield f"niceness is {nice}"


def _out_of_memory() -> Iterator[str]:
    try:
        adjusted = int(_OOM.read_text())
    except (OSError, ValueError):
        return
    if adjusted > 0:
        yield f"oom_score_adj is {adjusted}: the kernel ends the daemon early when memory is short"
