"""Simulated machines with Ascend devices, for the tests of the simulated ACL runtime."""

import subprocess
import sys
import textwrap
from pathlib import Path

from gcr.native import sim_dir

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "native" / "sim"), str(ROOT / "backends" / "ascend")]

from simulated import CONTEXT, DEADLINE, Machine, MiB  # noqa: E402

__all__ = ["CONTEXT", "DEADLINE", "AclMachine", "MiB", "build", "folder"]

NEWEST = "9.1"
IMPORTED = (ROOT / "tests" / "victims", ROOT / "core", ROOT / "backends" / "ascend")


def folder(version: str = NEWEST) -> Path:
    """The libraries of the runtime that plays one CANN release."""
    return sim_dir("ascend" if version == NEWEST else f"ascend-{version}")


class AclMachine(Machine):
    """One simulated machine, seen through the runtime of one CANN release."""

    def __init__(self, directory: Path, version: str = NEWEST, **settings: object) -> None:
        super().__init__(directory, **settings)
        self.env |= {
            "LD_LIBRARY_PATH": str(folder(version)),
            "GCR_SIM_KERNELS": str(folder(version) / "kernels.so"),
            "PYTHONPATH": ":".join(str(each) for each in IMPORTED),
        }

    def command(self, program: str) -> list[str]:
        return [sys.executable, "-c", "from acl_calls import *\n" + textwrap.dedent(program)]

    def used(self, device: int = 0) -> int:
        """Bytes in use on a device, as the management library tells a process that does not use it."""
        program = "acl.dcmi_init(); say(acl.dcmi_get_device_hbm_info(%d, 0).memory_usage)"
        return int(self.run(program % device)[0]) * MiB


def build(program: Path) -> Path:
    """A C program of this folder, linked to the runtime as its maker would link it."""
    source = Path(__file__).with_name(f"{program.name}.c")
    words = ["cc", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'shim'}", "-o", program, source]
    subprocess.run([*words, f"-L{folder()}", "-lascendcl", "-lpthread"], check=True, timeout=DEADLINE)
    return program
