"""Errors of a migration: a job that moves to another node."""

from gcr.errors import Refused, RolledBack


class CannotMigrate(Refused):
    """The job cannot move between these two nodes, and nothing was touched; the message names what is missing or
    differs: a device, a driver's version, a path, the daemon's socket, CRIU, room.
    """

    code = "cannot_migrate"


class MigrationUnderWay(Refused):
    """The job is moving to another node, or from one, and only that migration may bring it back: `gcr migrate JOB
    --recover` where its coordinator has died.
    """

    code = "migration_under_way"


class NoSuchMigration(Refused):
    """The node knows no such migration of the job: it is over there, or was never begun."""

    code = "no_such_migration"


class GivenAway(Refused):
    """The job was given away to another node, which the message names; it runs there, or its images are there."""

    code = "given_away"


class MigrationFailed(RolledBack):
    """A step of the migration failed, and the job runs on at the source. The message has the node's own error."""

    code = "migration_failed"


class MigrationUnsettled(RolledBack):
    """A node does not answer, or failed at the step that it has to take: the job is in its images, and runs at most
    once. Once the node answers: `gcr migrate JOB --recover`.
    """

    code = "migration_unsettled"
