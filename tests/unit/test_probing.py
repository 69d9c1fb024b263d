"""The parts of a backend's probe: absence, and any error of a vendor's library, are answers."""

import pytest

from gcr.backend import Device
from gcr.devices import if_present, is_simulated, ordinal_in, same_uuid, uuid_bytes, uuid_text
from gcr.errors import BackendMissing, DriverError, DriverTooOld
from gcr.probing import Check, Lacking, all_have, answers, named
from gcr.vmm import DeviceFull
from gcr.vmm.trial import exports, with_room

RAW = bytes(range(16))
UUID = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


def raising(error: Exception):
    def evidence() -> str:
        raise error

    return evidence


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (Lacking("no device"), "no device"),
        (DriverError("vInit: BAD (3)"), "vInit: BAD (3)"),
        (ValueError("not a number"), "ValueError: not a number"),
        (OSError(13, "Permission denied"), "PermissionError: [Errno 13] Permission denied"),
        (Lacking(), "no answer"),
    ],
)
def test_a_check_that_ends_badly_is_an_answer_and_the_others_are_asked(error: Exception, found: str) -> None:
    bad, good = answers([Check("first", raising(error), "mend it"), Check("second", lambda: "seen", "", needed=False)])
    assert (bad.name, bad.ok, bad.evidence, bad.remedy, bad.needed) == ("first", False, found, "mend it", True)
    assert (good.name, good.ok, good.evidence, good.needed) == ("second", True, "seen", False)


def test_devices_are_named_and_called_simulated_where_they_are() -> None:
    assert named([Device(UUID, "H200", 1, 0)]) == f"H200 ({UUID})"
    assert named([Device(UUID, "H200", 1, 0), Device(UUID, "Simulated H200", 1, 0)]).startswith("SIMULATED: ")
    assert not is_simulated("H200")
    with pytest.raises(Lacking, match="no device"):
        named([])


def test_what_each_device_must_have_is_asked_of_each() -> None:
    assert all_have("wings", lambda n: n < 2, 2) == "every device has wings"
    with pytest.raises(Lacking, match="device 2 has no wings"):
        all_have("wings", lambda n: n < 2, 3)
    with pytest.raises(Lacking, match="no device"):
        all_have("wings", lambda n: True, 0)


def test_a_uuid_is_the_same_with_and_without_its_prefix() -> None:
    assert uuid_text(RAW) == UUID
    assert uuid_bytes(UUID) == uuid_bytes(UUID.removeprefix("GPU-")) == RAW
    assert same_uuid(UUID, UUID.removeprefix("GPU-").upper())
    assert not same_uuid(UUID, uuid_text(RAW[::-1]))


def test_a_device_is_found_in_the_driver_s_order() -> None:
    assert ordinal_in(["GPU-x", UUID], UUID.removeprefix("GPU-")) == 1
    with pytest.raises(BackendMissing, match="no device GPU-y"):
        ordinal_in(["GPU-x", UUID], "GPU-y")


@pytest.mark.parametrize("absent", [BackendMissing("no driver"), DriverTooOld("too old")])
def test_without_a_driver_there_are_no_devices(absent: Exception) -> None:
    assert if_present(raising(absent)) == []  # type: ignore[arg-type]


def test_a_driver_that_fails_is_no_absence_unless_the_vendor_says_so() -> None:
    with pytest.raises(DriverError):
        if_present(raising(DriverError("a device is lost")))  # type: ignore[arg-type]
    assert if_present(raising(DriverError("a device is lost")), DriverError) == []  # type: ignore[arg-type]


class Exporting:
    """The part of a VmmDriver that a trial needs; `export` ends as told."""

    granularity = 4096

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.held: list[int] = []

    def enter(self) -> None: ...

    def create(self, size: int, _spec: object) -> int:
        if isinstance(self.error, DeviceFull):
            raise self.error
        self.held.append(size)
        return len(self.held) - 1

    def export(self, _handle: int) -> int:
        import os

        if self.error:
            raise self.error
        return os.open("/dev/null", os.O_RDONLY)

    def release(self, handle: int) -> None:
        self.held.pop(handle)


@pytest.mark.parametrize("error", [None, DriverError("vExport: NO (801)"), DeviceFull()])
def test_a_trial_of_exporting_keeps_nothing(error: Exception | None) -> None:
    device = Exporting(error)
    if error is None:
        assert exports(device) == "memory exports as file descriptors"  # type: ignore[arg-type]
    else:
        with pytest.raises(Lacking if isinstance(error, DeviceFull) else DriverError):
            exports(device)  # type: ignore[arg-type]
    assert device.held == []


def test_a_full_device_is_no_answer_to_a_trial() -> None:
    with pytest.raises(Lacking, match="no room"):
        with_room(raising(DeviceFull()))
