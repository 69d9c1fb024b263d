"""Restores onto other devices: `gpuPairs` of cuCheckpointProcessRestore, since r580.

The driver demands, by its documentation, the same chip, enough memory, and a pair for each device that it knows of,
also for those that CUDA_VISIBLE_DEVICES hides. Seen on two H200s with r580.159: fewer pairs are INVALID_VALUE, and the
process stays checkpointed and comes back in place; with all of them it comes back also on a device that is hidden from
it, but takes in no memory of that one from others (NOT_INITIALIZED).
"""

from collections.abc import Mapping
from typing import Any

from gcr.errors import BackendMissing, DriverTooOld, UnsupportedState, WrongDevice
from gcr_nvidia import devices, uuids
from gcr_nvidia.driver import bindings, cuda
from gcr_nvidia.memory import ordinal_of

OLDEST_BRANCH = 580


def check(moves: Mapping[str, str]) -> str:
    """Checks that the driver takes these UUIDs, old to new. Returns the evidence that it takes any.

    Raises DriverTooOld, BackendMissing, UnsupportedState, WrongDevice.
    """
    version = devices.driver_version()
    if int(version.split(".")[0]) < OLDEST_BRANCH:
        raise DriverTooOld(f"driver {version} restores on the same devices only; r{OLDEST_BRANCH} on others, too")
    if not hasattr(bindings(), "CUcheckpointGpuPair"):
        raise BackendMissing("these cuda-bindings know no other devices at a restore", hint="cuda-bindings 13 or newer")
    for old, new in moves.items():
        _check_pair(devices.handle(old), devices.handle(new))
    return f"driver {version}"


def _check_pair(old: Any, new: Any) -> None:
    before, after = devices.name_of(old), devices.name_of(new)
    if before != after:
        text = f"{devices.uuid_of(new)} is {after}, {devices.uuid_of(old)} is {before}: the driver wants the same chip"
        raise WrongDevice(text, hint="gcr devices")
    for device in (old, new):
        if devices.mig_enabled(device):
            raise UnsupportedState(f"{devices.uuid_of(device)} is in MIG mode", hint="docs/limitations.md#mig")


def reaches(device: str, peer: str) -> bool:
    """Tells whether work on one device can read and write memory of another. Raises BackendMissing, DriverError."""
    one, other = (cuda.cuDeviceGet(ordinal_of(uuid)) for uuid in (device, peer))
    return bool(cuda.cuDeviceCanAccessPeer(one, other))


def restore_arguments(moves: Mapping[str, str], keep_alive: list[object]) -> Any:
    """One pair a device. `keep_alive` holds what the driver reads until the call is over."""
    driver = bindings()
    pairs = []
    for old, new in moves.items():
        pair = driver.CUcheckpointGpuPair()
        pair.oldUuid, old_bytes = uuids.driver_uuid(old)
        pair.newUuid, new_bytes = uuids.driver_uuid(new)
        keep_alive += [old_bytes, new_bytes]
        pairs.append(pair)
    arguments = driver.CUcheckpointRestoreArgs()
    arguments.gpuPairs = pairs
    arguments.gpuPairsCount = len(pairs)
    return arguments
