"""Simulated AMD machines for the tests, and programs on them: by unmodified hip-python of either generation."""

import sys
import textwrap
from pathlib import Path

from gcr.native import sim_dir

sys.path.insert(0, str(Path(__file__).parents[1] / "native" / "sim"))
sys.path.insert(0, str(Path(__file__).parents[1] / "victims"))

import hip_python
from simulated import Machine

TESTS = Path(__file__).parents[1]
PRELUDE = """
import ctypes, os, socket, sys, threading, time
from hip_calls import *

def say(*words):
    print(*words, flush=True)

def wait_for_line():
    if not sys.stdin.readline():
        raise SystemExit("the test is gone")

def channel():
    return socket.socket(fileno=os.dup(0))

def kernels():
    return Kernels(os.environ["GCR_SIM_KERNELS"])
"""


def runtime() -> Path:
    """Returns the folder of the simulated libamdhip64 and librocm_smi64."""
    return sim_dir("amd")


class HipMachine(Machine):
    """One simulated machine with AMD devices; its programs use that generation of hip-python."""

    def __init__(self, directory: Path, generation: str = "10", **settings: object) -> None:
        super().__init__(directory, **settings)
        foreign = ("HIP_", "ROCR_", "ROCM_")
        self.env = {name: value for name, value in self.env.items() if not name.startswith(foreign)}
        self.env |= hip_python.environment(generation, runtime())
        self.env["GCR_SIM_KERNELS"] = str(runtime() / "kernels.so")

    def command(self, program: str) -> list[str]:
        return [sys.executable, "-c", PRELUDE + textwrap.dedent(program)]

    def used(self, device: int = 0) -> int:
        """Bytes in use on a device, as a process without a context sees them."""
        return int(self.smi("rsmi_dev_memory_usage_get", device, 0))

    def smi(self, function: str, *arguments: int) -> int:
        """Returns the result of a function of ROCm SMI with one 64-bit result. It must succeed."""
        program = f"""
            library, value = ctypes.CDLL("librocm_smi64.so"), ctypes.c_uint64()
            assert library.rsmi_init(ctypes.c_uint64(0)) == 0
            assert library.{function}(*{arguments!r}, ctypes.byref(value)) == 0
            say(value.value)
        """
        return int(self.run(program)[0])
