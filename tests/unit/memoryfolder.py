"""A folder in the place of /dev/shm."""

from pathlib import Path

import pytest

from gcr import dumpfolder


def memory_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder that gcr takes for /dev/shm; gcr's own files go beside it."""
    place = folder / "shm"
    place.mkdir()
    monkeypatch.setattr(dumpfolder, "_TMPFS", place)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    return place
