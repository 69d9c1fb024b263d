"""Tidying up: releases of things that may be gone already."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from gcr.engine.node import Node, World
from gcr.errors import GcrError
from gcr.job.process import Process
from gcr.memory.escrow import Keeper

log = logging.getLogger("gcr.engine")


def forget_freed(process: Process, ids: Sequence[int], node: Node, world: World, keeper: Keeper) -> None:
    """Makes workers and keeper let go of handles that the process has freed."""
    forget_lent(process, ids, node, world)
    quietly("drop", lambda: keeper.drop(process.identity.pid, ids))


def forget_lent(process: Process, ids: Sequence[int], node: Node, world: World) -> None:
    """Makes workers let go of handles that the process has freed, and that no keeper has."""
    for device in set(process.seen.uuids.values()):
        worker = node.warm_worker(world, device)
        if worker:
            quietly("forget", partial(worker.handles.forget, process.hold, ids))


def quietly(step: str, action: Callable[[], object]) -> None:
    """Runs an action that tidies up. A failure is logged, since its object may be gone already."""
    try:
        action()
    except GcrError as error:
        log.warning("%s: %s", step, error)
