"""The supervisor: `gcr run` itself, the parent of a job."""

from gcr.supervisor.spec import JobSpec

__all__ = ["JobSpec", "run"]


def run(spec: JobSpec) -> int:
    """Start the job, stay until its program ends, and return the exit code `gcr run` shall return."""
    from gcr.supervisor.process import supervise

    return supervise(spec)
