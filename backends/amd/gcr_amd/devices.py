"""Devices as the HIP runtime lists them, and the kernel's count of their memory."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from gcr.backend import Device
from gcr.devices import described, if_present, is_simulated, uuid_text, where_it_has_bytes
from gcr.drain import DeviceMemory
from gcr_amd import kfd
from gcr_amd.runtime import hip, initialise

_NAME_BYTES = 256
_PCI_BYTES = 64


def uuid_of(ordinal: int) -> str:
    return uuid_text(_sixteen(hip.hipDeviceGetUuid(ordinal).bytes))


def _sixteen(raw: object) -> bytes:
    """hip-python gives the bytes, or, where it took them for a string, without the zeros at their end."""
    text = raw if isinstance(raw, bytes) else bytes(raw)  # type: ignore[call-overload]
    return bytes(text[:16]).ljust(16, b"\0")


def name_of(ordinal: int) -> str:
    return _string(hip.hipDeviceGetName(_NAME_BYTES, ordinal))


def _string(value: object) -> str:
    text = value if isinstance(value, bytes) else bytes(value)  # type: ignore[call-overload]
    return text.split(b"\0", 1)[0].decode(errors="replace")


class Counter(Struct, frozen=True):
    """The source of one device's memory counts."""

    gpu: kfd.Gpu
    simulated: bool

    @classmethod
    def of(cls, ordinal: int) -> "Counter":
        pci = _string(hip.hipDeviceGetPCIBusId(_PCI_BYTES, ordinal))
        return cls(kfd.gpu_at(pci), is_simulated(name_of(ordinal)))

    def memory(self) -> DeviceMemory:
        return self.gpu.memory()


def count() -> int:
    """Raises BackendMissing without a runtime."""
    initialise()
    return int(hip.hipGetDeviceCount())


def counted() -> Sequence[tuple[str, Counter]]:
    """UUID and counter of every device. Raises BackendMissing without a runtime."""
    return [(uuid_of(ordinal), Counter.of(ordinal)) for ordinal in range(count())]


def present() -> Sequence[Device]:
    """Every device; empty without a runtime."""
    return if_present(lambda: [_describe(ordinal) for ordinal in range(count())])


def _describe(ordinal: int) -> Device:
    return described(uuid_of(ordinal), name_of(ordinal), Counter.of(ordinal).memory())


def holders(device: str) -> Mapping[int, int]:
    """Bytes by process. Empty for a device that is not here."""
    return next((counter.memory().by_pid for uuid, counter in counted() if uuid == device), {})


def bytes_of(pid: int) -> dict[str, int]:
    """Device UUID to the bytes a process has there; devices where it has none are left out."""
    return where_it_has_bytes({uuid: counter.gpu.bytes_of(pid) for uuid, counter in counted()})
