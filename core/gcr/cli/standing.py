"""Tells where jobs stand after a command that was cut short: interrupted, or left by its daemon."""

import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from gcr.api.listings import JobInfo
from gcr.api.requests import Target
from gcr.cli.output import say
from gcr.errors import GcrError, Interrupted, NoSuchJob
from gcr.losterrors import DaemonDied
from gcr.rendezvous.client import Client, settle

_KNOWN_S = 10.0  # seconds within which a new daemon knows the jobs of the one before it
_LOOK_S = 0.1

_BECAME = {"writing": "is still being written", "durable": "is durable", "failed": "was not written"}


class Left(Exception):
    """The daemon died while it carried a command out. `daemon_died` tells users of it."""


class _Standing(Struct, frozen=True):
    """Text for people, and the state. `job`: its row of `ps`, None for one that is not there any more."""

    text: str
    state: str | None
    job: JobInfo | None = None


def interrupted(targets: Sequence[Target], image: str | None = None) -> Interrupted:
    """Closing the connection told the daemon to stop; it may have decided already, so say where the jobs stand."""
    say("gcr: interrupted, waiting for the rollback")
    found = [_standing(target, settle(target)) for target in targets]
    text = "interrupted; " + " and ".join(each.text for each in found)
    job = found[0].job
    became = _BECAME.get(job.image.state) if job and job.image and job.image.name == image else None
    text += f"; image {image} {became}" if became else ""
    return Interrupted(text, state=found[0].state, hint="gcr ps" if became else "")


def daemon_died(targets: Sequence[Target]) -> DaemonDied:
    """Starts another daemon, which brings the jobs to rest, and says where they stand."""
    say("gcr: the daemon died, waiting for the next one")
    found = [_standing(target, _settled(target)) for target in targets]
    suspended = [each.job.job for each in found if each.job and each.job.state.endswith("suspended")]
    text = "the daemon died in the middle; " + " and ".join(each.text for each in found)
    hint = f"gcr restore {suspended[0]}" if suspended else "gcr ps, then again"
    return DaemonDied(text, state=found[0].state, hint=hint)


def _settled(target: Target) -> JobInfo | None:
    end = time.monotonic() + _KNOWN_S
    while True:
        with suppress(GcrError), Client.connect():
            job = settle(target)
            if job or not _lives(target):
                return job
        if time.monotonic() > end:
            return None
        time.sleep(_LOOK_S)


def _lives(target: Target) -> bool:
    from gcr.job.runs import all_runs

    return any(run.end is None for run in all_runs() if target in (run.job, run.pid))


def _standing(target: Target, job: JobInfo | None) -> _Standing:
    if job and job.state != "exited":
        return _Standing(f"{target} is {job.state}", job.state, job)
    from gcr.job.runs import refuse_ended

    try:
        refuse_ended(target)
    except NoSuchJob as ended:
        return _Standing(f"{ended.message} ({ended.hint})" if ended.hint else ended.message, ended.state)
    except (GcrError, OSError):
        pass
    return _Standing(f"{target} is {job.state if job else 'in an unknown state'}", job.state if job else None, job)
