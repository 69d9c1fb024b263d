"""Pure parts of the NVIDIA backend: no driver is needed, not even a simulated one."""

import itertools
import os
import socket
from pathlib import Path

import pytest

from gcr import processes, sharing
from gcr.backend import Device
from gcr.errors import NotDeviceMemory
from gcr.probing import answers
from gcr_nvidia import probe, refusals
from gcr_nvidia.memory import check_kind


def refuse_with(monkeypatch: pytest.MonkeyPatch, opened: list[str], mapped: list[str]) -> list[str]:
    monkeypatch.setattr(processes, "_open_files", lambda _pid: iter(opened))
    monkeypatch.setattr(sharing, "mapped_files", lambda _pid: mapped)
    monkeypatch.setattr(refusals.devices, "handles", lambda: ["first", "second"])
    monkeypatch.setattr(refusals.devices, "mig_enabled", lambda device: device == "second")
    monkeypatch.setattr(refusals.devices, "minor_number", lambda device: ["first", "second"].index(device))
    monkeypatch.setattr(refusals.devices, "uuid_of", lambda device: f"GPU-{device}")
    return [refusal.reason for refusal in refusals.of(1)]


@pytest.mark.parametrize(
    ("opened", "mapped", "reasons"),
    [
        (["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/shm/nccl-x"], ["/usr/lib/libnccl.so.2"], []),
        (["/dev/infiniband/uverbs0"], [], ["verbs"]),
        (["/dev/nvidia-caps-imex-channels/channel0"], [], ["fabric"]),
        ([], ["/dev/shm/nccl-AbC (deleted)", "/dev/shm/nccl-dEf"], ["nccl"]),
        (["/dev/gdrdrv"], [], ["gdrcopy"]),
        ([], ["/dev/gdrdrv"], ["gdrcopy"]),
        (["/dev/nvidia1"], [], ["mig"]),
        (["/dev/infiniband/uverbs0", "/dev/nvidia1"], ["/dev/shm/nccl-A"], ["verbs", "nccl", "mig"]),
    ],
)
def test_refusals_seen_from_outside(
    monkeypatch: pytest.MonkeyPatch, opened: list[str], mapped: list[str], reasons: list[str]
) -> None:
    assert refuse_with(monkeypatch, opened, mapped) == reasons


@pytest.mark.parametrize(
    ("version", "name", "preempted"),
    [
        ("580.159.04", "NVIDIA H200", False),
        ("590.48.01", "NVIDIA H200", True),
        ("580.0.0-simulated", "Simulated H200", True),
    ],
)
def test_doctor_names_the_drivers_that_do_not_preempt_what_they_restored(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str, preempted: bool
) -> None:
    monkeypatch.setattr(probe.devices, "driver_version", lambda: version)
    monkeypatch.setattr(probe.devices, "present", lambda: [Device("GPU-1", name, 1 << 30, 0)])
    (told,) = answers([check for check in probe.CHECKS if check.name == "preemption"])
    assert (told.ok, told.needed, version in told.evidence) == (preempted, False, True)


@pytest.mark.parametrize(
    ("path", "simulated", "accepted"),
    [("/dev/null", False, True), ("/dev/null", True, False), (__file__, False, False), (__file__, True, True)],
)
def test_descriptors_of_another_kind_never_reach_the_driver(path: str, simulated: bool, accepted: bool) -> None:
    with Path(path).open("rb") as file:
        if accepted:
            check_kind(file.fileno(), simulated)
        else:
            with pytest.raises(NotDeviceMemory):
                check_kind(file.fileno(), simulated)


def test_a_pipe_and_a_socket_never_reach_the_driver() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        for fd, simulated in itertools.product((ours.fileno(), reading), (False, True)):
            with pytest.raises(NotDeviceMemory):
                check_kind(fd, simulated)
    os.close(reading)
    os.close(writing)
