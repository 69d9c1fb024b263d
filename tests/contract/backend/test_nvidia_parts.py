"""Pure parts of the NVIDIA backend: no driver is needed, not even a simulated one."""

import errno
import itertools
import mmap
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcr.errors import BackendMissing, NotDeviceMemory
from gcr_nvidia import driver, refusals, uuids
from gcr_nvidia.memory import check_kind


def test_uuids_are_the_same_with_and_without_their_prefix() -> None:
    raw = uuid.uuid4().bytes
    assert uuids.raw(uuids.text(raw)) == raw
    assert uuids.same(uuids.text(raw), uuids.text(raw).removeprefix("GPU-"))
    assert not uuids.same(uuids.text(raw), uuids.text(uuid.uuid4().bytes))


@pytest.mark.parametrize("calls_lost", ["RuntimeError", "AttributeError"])
def test_a_call_the_driver_lacks_is_a_missing_backend(monkeypatch: pytest.MonkeyPatch, calls_lost: str) -> None:
    class Bindings:
        @staticmethod
        def cuOld() -> None:
            raise RuntimeError('Function "cuOld" not found')

    monkeypatch.setattr(driver, "bindings", lambda: Bindings)
    with pytest.raises(BackendMissing):
        driver.attempt("cuOld" if calls_lost == "RuntimeError" else "cuNeverBound")


def test_a_result_newer_than_the_bindings_still_has_its_number() -> None:
    assert driver.describe("cuX", 987654) == "cuX: CUresult (987654)"


def refuse_with(monkeypatch: pytest.MonkeyPatch, opened: list[str], mapped: list[str]) -> list[str]:
    monkeypatch.setattr(refusals, "open_files", lambda _pid: iter(opened))
    monkeypatch.setattr(refusals, "mapped_files", lambda _pid: iter(mapped))
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
        (["/dev/nvidia1"], [], ["mig"]),
        (["/dev/infiniband/uverbs0", "/dev/nvidia1"], ["/dev/shm/nccl-A"], ["verbs", "nccl", "mig"]),
    ],
)
def test_refusals_seen_from_outside(
    monkeypatch: pytest.MonkeyPatch, opened: list[str], mapped: list[str], reasons: list[str]
) -> None:
    assert refuse_with(monkeypatch, opened, mapped) == reasons


def test_a_process_that_may_not_be_looked_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_pid: int) -> Iterator[str]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(refusals, "open_files", denied)
    assert [refusal.reason for refusal in refusals.of(1)] == ["not_permitted"]


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


def test_what_a_process_maps_and_opens_is_read_from_proc(tmp_path: Path) -> None:
    path = tmp_path / "a name with spaces"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert str(path) in refusals.mapped_files(os.getpid())
        assert str(path) in refusals.open_files(os.getpid())
    assert str(path) not in refusals.mapped_files(os.getpid())
