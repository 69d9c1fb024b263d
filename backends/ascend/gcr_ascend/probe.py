"""The capabilities here, each with its evidence and the remedy for its absence. Absence is an answer, not an error."""

from collections.abc import Sequence

from gcr.backend import Capability
from gcr.facilities import facility, resting_on
from gcr.probing import Check, Lacking, answers, named
from gcr_ascend import devices
from gcr_ascend.acl import acl, has

OLDEST_SNAPSHOTS = "8.5"
_INSTALL = "install CANN and the Ascend driver, and source CANN's set_env.sh so that its libraries are found"
_CANN = 0  # aclCANNPackageName
_SNAPSHOT_CALLS = ("Lock", "Backup", "Restore", "Unlock")
_VIRTUAL_MEMORY = (
    "aclrtReserveMemAddress",
    "aclrtReleaseMemAddress",
    "aclrtMallocPhysical",
    "aclrtFreePhysical",
    "aclrtMapMem",
    "aclrtUnmapMem",
    "aclrtMemGetAllocationGranularity",
)


def capabilities() -> Sequence[Capability]:
    checks = answers(CHECKS)
    return [*checks, *_facilities(checks)]


def _facilities(checks: Sequence[Capability]) -> Sequence[Capability]:
    grounds = ("runtime", "device", "virtual_memory", "device_uuid")
    return [
        facility("handoff", False, "a shareable handle of ACL is a name that holds nothing", "copyout is used instead"),
        resting_on("copyout", checks, grounds, "copies made by the agent"),
        facility("driver_strategy", False, "snapshots are a process's own", "start the program with gcr run"),
        facility("device_hash", False, "no kernel for Ascend", "what was copied to the host is hashed there"),
        resting_on("control_state", checks, ("runtime", "device", "snapshots"), "snapshot calls made by the agent"),
        facility("device_map", False, "ACL restores on the device that was left", "a job comes back where it was"),
        facility("verified_on", False, "a simulated runtime only", "docs/ascend.md: what hardware must answer"),
    ]


def _runtime() -> str:
    version = acl.aclsysGetCANNVersion(_CANN)
    return f"CANN {version.version.decode(errors='replace')}"


def _device() -> str:
    return named(devices.present() if acl.aclrtGetDeviceCount() else [])


def _device_uuid() -> str:
    known = devices.ordinals()
    if len(known) != int(acl.aclrtGetDeviceCount()):
        raise Lacking("two devices have one UUID")
    return f"{len(known)} devices told apart"


def _dcmi() -> str:
    known = devices.ordinals()
    for ordinal in known.values():
        devices.Card.of(ordinal).memory()
    return f"{len(known)} devices counted by DCMI"


def _virtual_memory() -> str:
    lacking = [name for name in _VIRTUAL_MEMORY if not has(name)]
    if lacking:
        raise Lacking(f"this CANN has no {', '.join(lacking)}")
    return "memory can be unmapped and mapped again"


def _snapshots() -> str:
    lacking = [step for step in _SNAPSHOT_CALLS if not has(f"aclrtSnapShotProcess{step}")]
    if lacking or not has("rtSnapShotProcessGetState"):
        raise Lacking("this CANN has no snapshot calls")
    return "aclrtSnapShotProcess* and their state"


CHECKS: Sequence[Check] = (
    Check("runtime", _runtime, _INSTALL),
    Check("device", _device, "is a device visible here? try npu-smi info"),
    Check("device_uuid", _device_uuid, "install CANN 8.5 or newer: devices are told apart by UUID"),
    Check("dcmi", _dcmi, "install the Ascend driver's DCMI (libdcmi.so)"),
    Check("virtual_memory", _virtual_memory, "memory that cannot be unmapped stays: install CANN 8.5 or newer"),
    Check("snapshots", _snapshots, f"install CANN {OLDEST_SNAPSHOTS} or newer; --data-only needs none", needed=False),
)
