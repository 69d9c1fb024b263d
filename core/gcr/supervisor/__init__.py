"""The supervisor: `gcr run` itself, the parent of a job."""

from gcr.supervisor.spec import JobSpec, Outcome

__all__ = ["JobSpec", "Outcome", "run"]


def run(spec: JobSpec) -> Outcome:
    """Start the job and stay until its program ends; a detached one is left once it runs.

    Raises GcrError when the program was not started.
    """
    from gcr.supervisor.process import supervise

    return supervise(spec)
