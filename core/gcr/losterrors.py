"""Errors about a job of which the driver gives some processes back and others not, or that its daemon has left."""

from gcr.errors import Lost, PeerGone, Refused


class DaemonDied(PeerGone):
    """The daemon died in the middle. Another one has brought the job to rest, and the message says where it stands:
    `gcr restore` brings a suspended one back.
    """

    code = "daemon_died"


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
