"""What is in a directory: whoever finds nothing there acts on it, takes chunks for unused or a job for undecided."""

from pathlib import Path


def listed(directory: Path, ending: str = "") -> list[Path]:
    """All whose names end so, sorted. Raises OSError, which Path.glob keeps to itself from Python 3.12 on."""
    return sorted(path for path in directory.iterdir() if path.name.endswith(ending))
