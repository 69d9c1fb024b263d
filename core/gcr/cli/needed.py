"""Images that are the only copy of a suspended job's bytes, by the decision records of all daemons of the user."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gcr.job.decisions import DecisionRecord
from gcr.job.journal import Standing, standing
from gcr.job.migrations import Migrations
from gcr.processes import ProcessIdentity, alive
from gcr.rendezvous.folder import About, DaemonFolder
from gcr.runtime import former_journal, socket_path

if TYPE_CHECKING:
    from gcr.image.store.store import Store


def needed_images(store: "Store") -> dict[str, str]:
    """Images of the store that may not be removed, each with its job. No daemon need run.

    Where a record does not read back, every image that was the only copy of that job counts. A job on another machine,
    or in another container, may still be suspended. Images of a job that moves count.

    Raises UnsafeRuntime, NoRecord, OSError.
    """
    here, found = About.here(socket_path()), {}
    for about, journal in _journals():
        if about is not None and about.is_over(here):
            continue
        where = "" if about is None or about.host == here.host else f" on {about.host}"
        for job, name in (*_images(store, journal), *_intended(store, journal)):
            if about is None or not about.shares_pids_with(here) or _lives(journal, job):
                found[name] = job + where
    return found | _moving(store)


def _moving(store: "Store") -> dict[str, str]:
    """Returns the images of jobs that move to another node, each with its job: the last one may be all that is left."""
    there = (each for each in Migrations.here().all() if _is_same(Path(each.store), store.path))
    return {name: each.job for each in there for name in each.images}


def images_of_former_boots(store: "Store") -> dict[str, str]:
    """Returns the images of jobs that ended with this machine's last boot, each with its job."""
    here = About.here(socket_path())
    over = (journal for about, journal in _journals() if about is not None and about.is_over(here))
    return {name: job for journal in over for job, name in _images(store, journal)}


def _journals() -> Iterator[tuple[About | None, Standing]]:
    """Yields the journals of all daemons of the user, the one of an earlier gcr included."""
    for folder in DaemonFolder.all():
        yield folder.about(), standing(folder.journal)
    yield None, standing(former_journal())


def _images(store: "Store", journal: Standing) -> Iterator[tuple[str, str]]:
    """Pairs of job and image."""
    for record in journal.records:
        if record.image and _is_same(Path(record.image.store), store.path):
            yield record.job, record.image.name
    somewhere = {record.job for record in journal.records if record.image and not record.image.name}
    if unknown := somewhere | journal.unreadable:
        for manifest in store.images.readable():
            if manifest.only_copy and manifest.source.job in unknown:
                yield manifest.source.job, manifest.name


def _intended(store: "Store", journal: Standing) -> Iterator[tuple[str, str]]:
    """Yields the images of daemons that died before they decided: such an image may be whole, and all that is left."""
    for record in journal.intended:
        if record.image and _is_same(Path(record.image.store), store.path):
            yield record.job, record.image.name


def _lives(journal: Standing, job: str) -> bool:
    """Returns whether a process of the job lives; True also for a record that does not name the processes."""
    record = next((record for record in (*journal.records, *journal.intended) if record.job == job), None)
    return record is None or any(map(alive, _identities(record)))


def _identities(record: DecisionRecord) -> list[ProcessIdentity]:
    return [ProcessIdentity(each.pid, each.start_time, each.stack) for each in record.processes]


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # the one that the record names cannot be reached by that path just now
        return one == other
