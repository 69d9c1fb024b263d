"""The kernel's counts: VRAM in use on a device and by process, read from sysfs. No library, no device file.

amdgpu says how much of a device is in use (`mem_info_vram_used`), KFD how much of it each process has
(`proc/<pid>/vram_<gpu id>`). A simulated runtime keeps files of the same shape in the folder of its machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gcr.drain import DeviceMemory
from gcr.errors import BackendMissing
from gcr.listing import listed


def root() -> Path:
    """/sys, or the simulated machine's."""
    if os.environ.get("GCR_SIMULATE") == "amd":
        return Path(os.environ["GCR_SIM_STATE"]) / "sys"
    return Path("/sys")


class Gpu(Struct, frozen=True):
    """A device as the kernel names it: PCI address `dddd:bb:dd.f`, and KFD's own number for it."""

    pci: str
    id: int

    def memory(self) -> DeviceMemory:
        folder = root() / "bus/pci/devices" / self.pci
        used, total = _number(folder / "mem_info_vram_used"), _number(folder / "mem_info_vram_total")
        return DeviceMemory(used, total, dict(self._by_pid()))

    def bytes_of(self, pid: int) -> int:
        """0 for a process that KFD does not know. Raises BackendMissing where it cannot be asked."""
        try:
            return _number(root() / f"class/kfd/kfd/proc/{pid}/vram_{self.id}")
        except BackendMissing as missing:
            if isinstance(missing.__cause__, FileNotFoundError):
                return 0
            raise

    def _by_pid(self) -> Iterator[tuple[int, int]]:
        for folder in _numbered(root() / "class/kfd/kfd/proc"):
            if size := self.bytes_of(int(folder.name)):
                yield int(folder.name), size


def gpu_at(pci: str) -> Gpu:
    """The KFD node of a PCI address. Raises BackendMissing."""
    for node in _numbered(root() / "class/kfd/kfd/topology/nodes"):
        number = _number(node / "gpu_id")
        if number and _pci_of(node) == pci.lower():
            return Gpu(pci.lower(), number)
    raise BackendMissing(f"the kernel's KFD knows no device at {pci}", hint="is the amdgpu module loaded?")


def knows(pid: int) -> bool:
    """Returns whether a process has opened KFD."""
    return (root() / f"class/kfd/kfd/proc/{pid}").is_dir()


def _pci_of(node: Path) -> str:
    properties = dict(line.split(maxsplit=1) for line in _text(node / "properties").splitlines() if " " in line)
    location, domain = int(properties.get("location_id", 0)), int(properties.get("domain", 0))
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"


def _numbered(folder: Path) -> list[Path]:
    try:
        return [path for path in listed(folder) if path.name.isdigit()]
    except OSError as missing:
        raise _missing(folder, missing) from missing


def _number(path: Path) -> int:
    return int(_text(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError as missing:
        raise _missing(path, missing) from missing


def _missing(path: Path, error: OSError) -> BackendMissing:
    return BackendMissing(f"{path}: {error.strerror}", hint="is the amdgpu module loaded?")
