"""Seven capabilities of a backend that every probe answers, besides the vendor's own checks.

They are about the backend, and the vendor's checks are about the machine. So `gcr doctor` needs none of them, and one
that is missing says what gcr does instead.
"""

from collections.abc import Sequence

from gcr.backend import Capability

FACILITIES = (
    "handoff",  # device data leaves and comes back as file descriptors
    "copyout",  # device data leaves as copies made by the agent
    "driver_strategy",  # the driver itself carries the data of a process that gcr did not start
    "device_hash",  # device data is compared by content, on the device
    "control_state",  # what the driver keeps besides the data is saved
    "device_map",  # a job may come back on other devices than it left
    "verified_on",  # hardware this backend was seen to work on; never a simulated device
)


def facility(name: str, ok: bool, evidence: str, remedy: str = "") -> Capability:
    return Capability(name, ok, evidence, remedy, needed=False)


def resting_on(name: str, checks: Sequence[Capability], grounds: Sequence[str], evidence: str) -> Capability:
    """A facility that is there when its grounds are; else the first ground that is not says why."""
    for check in checks:
        if check.name in grounds and not check.ok:
            return facility(name, False, f"{check.name}: {check.evidence}", check.remedy)
    return facility(name, True, evidence)
