"""Decision records that an earlier gcr left in the runtime directory, in one folder for all daemons of the user."""

import logging
from pathlib import Path

from gcr.daemon.foreign import environment_of
from gcr.job.decisions import DecisionRecord
from gcr.job.journal import Journal, standing
from gcr.runtime import former_journal, is_default_socket

log = logging.getLogger("gcr.daemon")


def take_over(journal: Journal, socket: Path) -> None:
    """Move the records of this daemon's jobs into its journal. Raises OSError, UnsafeRuntime."""
    former = former_journal()
    for record in standing(former).records:
        if _belongs(record, socket):
            if journal.record(record.job) is None:
                journal.decide(record)
                log.info("job %s: its decision record of an earlier gcr was taken over", record.job)
            (former / f"{record.job}.json").unlink(missing_ok=True)


def _belongs(record: DecisionRecord, socket: Path) -> bool:
    """`gcr run` tells each process the socket of its daemon. One that gcr did not start has the default's."""
    told = {environment_of(each.pid).get("GCR_SOCKET") for each in record.processes} - {None}
    return str(socket) in told if told else is_default_socket(socket)
