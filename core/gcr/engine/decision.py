"""The record of a transaction's decision on its job."""

import time
from collections.abc import Sequence

from gcr.engine.target import Target
from gcr.job.decisions import DecisionRecord, KeptImage, ProcessDecision


def decision_on(
    job: str,
    first: Target,
    kind: str,
    processes: Sequence[ProcessDecision],
    image: KeptImage | None = None,
    cut: str = "",
) -> DecisionRecord:
    """Returns the record. `first`: any target of the transaction."""
    return DecisionRecord(
        job=job,
        transaction=first.transaction,
        kind=kind,
        decided_at=time.time(),
        processes=tuple(processes),
        backend=first.world.backend,
        simulated=first.world.simulated,
        environment=dict(first.world.environment),
        image=image,
        cut=cut,
    )
