"""Processes gcr did not start: which drivers they see."""

from pathlib import Path

from gcr.engine.node import World
from gcr.processes import open_files

DEVICE_FILES = {"nvidia": "/dev/nvidia", "amd": "/dev/kfd", "ascend": "/dev/davinci"}


def world_of_process(pid: int, otherwise: str | None = None) -> World:
    """Of a process whose environment leads to a simulated driver that one, of any other the real one.

    otherwise: the vendor of one that has no device open, or that may not be looked into; else NVIDIA.
    """
    env = environment_of(pid)
    vendor = env.get("GCR_SIMULATE")
    if not vendor:
        return World(_vendor_of(pid) or otherwise or "nvidia")
    names = ("GCR_SIMULATE", "LD_LIBRARY_PATH", "ROCM_PATH", *(n for n in env if n.startswith("GCR_SIM_")))
    return World(vendor, simulated=True, environment=tuple(sorted((n, env[n]) for n in names if n in env)))


def _vendor_of(pid: int) -> str | None:
    """Whose devices it has open."""
    try:
        return next((vendor for vendor, path in DEVICE_FILES.items() if open_files(pid, path)), None)
    except PermissionError:
        return None


def environment_of(pid: int) -> dict[str, str]:
    """Empty for a process that is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
