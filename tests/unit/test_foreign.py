"""Whose devices a process uses that gcr did not start."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gcr.daemon import foreign


@contextmanager
def holding(*paths: Path, **environment: str) -> Iterator[int]:
    """A process that has these files open."""
    script = "import sys; held = [open(path) for path in sys.argv[1:]]; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, paths)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        yield process.pid
    finally:
        process.communicate()


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev."""
    files = {vendor: path.replace("/dev", str(tmp_path)) for vendor, path in foreign.DEVICE_FILES.items()}
    monkeypatch.setattr(foreign, "DEVICE_FILES", files)
    for name in ("nvidia0", "kfd", "davinci3", "null"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("files", "vendor"),
    [(["nvidia0"], "nvidia"), (["kfd"], "amd"), (["davinci3"], "ascend"), (["null"], "nvidia"), ([], "nvidia")],
)
def test_the_vendor_is_that_of_the_device_it_has_open(devices: Path, files: list[str], vendor: str) -> None:
    with holding(*(devices / name for name in files)) as pid:
        world = foreign.world_of_process(pid)
    assert (world.backend, world.simulated) == (vendor, False)


def test_a_simulated_device_is_what_its_environment_says(devices: Path) -> None:
    with holding(devices / "kfd", GCR_SIMULATE="ascend", GCR_SIM_STATE="/nowhere") as pid:
        world = foreign.world_of_process(pid)
    assert (world.backend, world.simulated) == ("ascend", True)
    assert ("GCR_SIM_STATE", "/nowhere") in world.environment


def test_a_process_that_is_gone_is_nobodys() -> None:
    assert foreign.world_of_process(2**22 + 1).backend == "nvidia"
