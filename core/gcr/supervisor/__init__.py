"""The supervisor: `gcr run` itself, the parent of a job."""

from collections.abc import Callable

from gcr.supervisor.spec import JobSpec, Outcome

__all__ = ["JobSpec", "Outcome", "run"]


def run(spec: JobSpec, started: Callable[[str, int], object] = lambda _job, _pid: None) -> Outcome:
    """Start the job and stay until its program ends; a detached one is left once it runs.

    `started` is told the name and the pid of a program that is not detached, as soon as it runs.
    Raises GcrError when the program was not started.
    """
    from gcr.supervisor.process import supervise

    return supervise(spec, started)
