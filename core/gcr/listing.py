"""The contents of a directory. A wrong empty answer does harm: chunks seem unused, or a job undecided."""

from pathlib import Path


def listed(directory: Path, ending: str = "") -> list[Path]:
    """Returns the paths with this ending, sorted. Raises OSError, which Path.glob hides from Python 3.12 on."""
    return sorted(path for path in directory.iterdir() if path.name.endswith(ending))
