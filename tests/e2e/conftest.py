"""One private machine a test; what a failed test left in the logs is shown."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from aftermath import logs_below, told
from filed import Filed
from machine import Machine
from served import DEVICE, Served
from worlds import NVIDIA, ON_DEVICE, ROOT, World

sys.path.insert(0, str(ROOT / "tests/native/sim"))

from dumps import CRIU, skip_without_criu


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Yields a machine in the world that the test's parameters name, NVIDIA's without any."""
    where: World = getattr(request, "param", NVIDIA)
    if ON_DEVICE and where is not NVIDIA:
        pytest.skip("the device is NVIDIA's")
    extra = where.environment() if where is not NVIDIA else {}
    made = Machine(tmp_path, vendor=where.vendor, where=where, extra=extra)
    (tmp_path / "run").mkdir(mode=0o700)
    yield made
    made.close()
    report = getattr(request.node, "report_call", None)
    if report is not None and report.failed:
        sys.stderr.write(logs_below(tmp_path / "state") + told(tmp_path / "stderr"))


@pytest.fixture
def criu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leads gcr to the CRIU of these tests; without it the test is skipped."""
    skip_without_criu()
    monkeypatch.setenv("GCR_CRIU", str(CRIU))


@pytest.fixture
def job(machine: Machine) -> Iterator[Filed]:
    """Yields a job that can be stopped and come back; it has some device memory."""
    job = Filed(machine)
    job.ask("mixed 6 1000 2000000")
    yield job
    job.close()


@pytest.fixture
def served(machine: Machine) -> Iterator[Served]:
    machine.memory = DEVICE
    made = Served(machine)
    yield made
    if made.process and made.process.poll() is None:
        made.kill()
