"""Jobs that were suspended when the machine went down. They are over; an image that alone had a job's bytes is left.

Their records lie in folders of daemons of a former boot. The next daemon notes the ends, and removes what says no more
than that. A record that names an image stays until `gcr rm` removes the image: `gcr prune` keeps it, `gcr ps` tells it.
"""

import logging
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct

from gcr.job.decisions import DecisionRecord, KeptImage
from gcr.job.journal import standing
from gcr.job.runs import STOPPED, note_end, runs_of
from gcr.rendezvous.folder import About, DaemonFolder
from gcr.runtime import socket_path

log = logging.getLogger(__name__)


class Left(Struct, frozen=True):
    """An image of a job that ended with the machine's last boot."""

    job: str
    image: KeptImage

    def row(self) -> dict[str, str]:
        return {"job": self.job, "image": self.image.name, "store": self.image.store}

    def said(self) -> str:
        where = f"image {self.image.name} of {self.image.store}"
        return f"{self.job} ended with this machine's last boot; its bytes are in {where}, which gcr prune keeps"


def left() -> list[Left]:
    """Raises UnsafeRuntime, OSError."""
    found = (record for folder in _folders() for record in standing(folder.journal).records)
    return [Left(record.job, record.image) for record in found if record.image and record.image.name]


def settle() -> None:
    """Note the ends of all jobs, and remove what names no image. Raises UnsafeRuntime, OSError."""
    for folder in _folders():
        found = standing(folder.journal)
        for record in found.records:
            _note_end(folder, record)
            if not record.image or record.away:  # a job that a container's runtime has was stopped
                _forget(folder, record)
        _remove_if_empty(folder)


def _note_end(folder: DaemonFolder, record: DecisionRecord) -> None:
    """Notes the end of a job of that boot; a later job may have the same name."""
    about, newest = folder.about(), next(iter(runs_of(record.job)), None)
    if about and newest and newest.boot == about.boot:
        suspended = "data_suspended" if record.kind == "data_only" else "suspended"
        away = record.image if record.away else None
        note_end(record.job, newest.id, STOPPED if record.away else suspended, away)


def forget(store: Path, names: Collection[str]) -> None:
    """These images of the store are gone. Raises UnsafeRuntime, OSError."""
    for folder in _folders():
        for record in standing(folder.journal).records:
            if record.image and record.image.name in names and Path(record.image.store) == store:
                _forget(folder, record)
        _remove_if_empty(folder)


def _folders() -> Iterator[DaemonFolder]:
    here = About.here(socket_path())
    for folder in DaemonFolder.all():
        about = folder.about()
        if about is not None and about.is_over(here):
            yield folder


def _forget(folder: DaemonFolder, record: DecisionRecord) -> None:
    for ending in (".copy", ".json"):
        (folder.journal / f"{record.job}{ending}").unlink(missing_ok=True)


def _remove_if_empty(folder: DaemonFolder) -> None:
    """A damaged record stays, for it may be about an image."""
    found = standing(folder.journal)
    if not found.records and not found.unreadable:
        shutil.rmtree(folder.path, ignore_errors=True)
