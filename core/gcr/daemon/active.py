"""Targets of running transactions."""

from gcr.daemon.jobs import Jobs
from gcr.engine.target import Target


class Active:
    """While a transaction runs, frees of its processes find their target."""

    def __init__(self, jobs: Jobs, targets: list[Target]) -> None:
        self._jobs, self._targets = jobs, targets

    def __enter__(self) -> None:
        with self._jobs.lock:
            self._jobs.targets.update({t.pid: t for t in self._targets})

    def __exit__(self, *_: object) -> None:
        with self._jobs.lock:
            for target in self._targets:
                if self._jobs.targets.get(target.pid) is target:
                    del self._jobs.targets[target.pid]
