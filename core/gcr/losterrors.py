"""Errors about a job of which the driver gives some processes back, and others not."""

from gcr.errors import Lost, Refused


class NotLost(Refused):
    """`gcr restore --without` names a process that is not of the job, or that its driver has not refused to give back,
    or no other process of the job would be left: `gcr ps`.
    """

    code = "not_lost"


class ProcessLost(Lost):
    """The driver refused for good to give a process of the job back; the others are suspended as before. `gcr restore
    JOB --without PID` brings them back, and ends that process.
    """

    code = "process_lost"
