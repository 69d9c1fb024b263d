"""Which images suspended jobs of this user on this machine have nothing else than: their decision records say so."""

from pathlib import Path

from gcr.journal import standing
from gcr.runtime import journal_dir


def needed_images(store: Path) -> dict[str, str]:
    """Of the store in this folder, each with its job. No daemon need run. Raises UnsafeRuntime, OSError."""
    kept = [(record.job, record.image) for record in standing(journal_dir()) if record.image]
    return {image.name: job for job, image in kept if _is_same(Path(image.store), store)}


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # the one that the record names cannot be reached by that path just now
        return one == other
