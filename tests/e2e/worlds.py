"""Worlds in which the suite runs: one for each vendor, and for each way in which its drivers differ. All are SIMULATED.

A test that takes the fixture `machine` runs on NVIDIA's; `everywhere` runs it once in each world.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gcr.native import sim_dir

ROOT = Path(__file__).parents[2]
VICTIMS = ROOT / "tests" / "victims"
ON_DEVICE = bool(os.environ.get("GCR_E2E_ON_DEVICE"))  # the same tests on a real GPU: tests/gpu/device.sh deaths

sys.path.insert(0, str(VICTIMS))

import hip_python  # noqa: E402

SLOW = pytest.mark.slow


def slowly(value: Any) -> Any:
    """A parameter of a test that is only for the slow ones."""
    return pytest.param(value, marks=SLOW)


@dataclass(frozen=True)
class World:
    """quirks: what its driver does wrong · data_only: control state cannot be saved, so it stays in the process

    copies: the processes copy out and in by themselves, as no memory of theirs can be handed over
    """

    name: str
    vendor: str
    told: str  # the program of tests/victims that does what it is told there
    quirks: str = ""
    data_only: bool = False
    copies: bool = False
    keeps_context: bool = False  # the device counts the context of a suspended process

    @property
    def strategy(self) -> str:
        return "copyout" if self.copies else "handoff"

    @property
    def suspended(self) -> str:
        return "data_suspended" if self.data_only else "suspended"

    @property
    def how(self) -> Mapping[str, bool]:
        """Fields of a request for a checkpoint."""
        return {"data_only": True} if self.data_only else {}

    @property
    def options(self) -> tuple[str, ...]:
        """The same for the command."""
        return ("--data-only",) if self.data_only else ()

    def handles(self, count: int) -> str:
        """Returns the line for a program to have memory of its own here."""
        return f"handles {count} {int('noexport' not in self.quirks)}"

    def environment(self) -> dict[str, str]:
        kernels = {"GCR_SIM_KERNELS": str(sim_dir(self.vendor) / "kernels.so")}
        quirks = {"GCR_SIM_QUIRKS": self.quirks} if self.quirks else {}
        return {**kernels, **quirks, **_BINDINGS[self.vendor]()}

    # ---- the steps of a transaction, as gcr.faults knows them ---------------------------------------------------

    def up_to_the_decision(self) -> list[str]:
        copied = ["copied_out"] if self.copies else []
        frozen = [] if self.data_only else ["locked", "frozen"]
        return ["prepared", "stop", "quiesced", *copied, "handed_over", *frozen, "drained", "staged"]

    def checkpoint(self) -> list[str]:
        return [*self.up_to_the_decision(), "decided", "committed_one"]

    def before_it_runs(self) -> list[str]:
        created = ["created"] if self.copies else []
        return ["room", *created, "refilled", "back", "mapped"]

    def restore(self) -> list[str]:
        return [*self.before_it_runs(), "decided", "opened_one"]


def _nothing() -> dict[str, str]:
    return {}


def hip_environment(generation: str = "10") -> dict[str, str]:
    """Under which programs and workers find that hip-python."""
    folders = [str(hip_python.folder(generation)), os.environ.get("PYTHONPATH", "")]
    path = [*folders, str(ROOT / "backends/amd"), str(ROOT / "core")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "ROCM_PATH": str(sim_dir("amd"))}


def _acl_environment() -> dict[str, str]:
    """Programs of tests/victims/acl_calls.py speak through the backend's table of calls."""
    path = [str(VICTIMS), str(ROOT / "backends/ascend"), str(ROOT / "core"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


_BINDINGS: Mapping[str, Callable[[], dict[str, str]]] = {
    "nvidia": _nothing,
    "amd": hip_environment,
    "ascend": _acl_environment,
}

NVIDIA = World("nvidia", "nvidia", "told_victim.py")
NOEXPORT = World("nvidia-noexport", "nvidia", "told_victim.py", quirks="noexport", copies=True)
AMD = World("amd", "amd", "hip_told.py", data_only=True)
AMD_LEAK = World("amd-leak-elsewhere", "amd", "hip_told.py", quirks="leak,elsewhere", data_only=True)
AMD_QUIRKS = World(
    "amd-leak-noexport-elsewhere", "amd", "hip_told.py", "leak,noexport,elsewhere", data_only=True, copies=True
)
ASCEND = World("ascend", "ascend", "acl_told.py", copies=True, keeps_context=True)
ASCEND_DATA = World("ascend-data", "ascend", "acl_told.py", data_only=True, copies=True, keeps_context=True)

WORLDS = (NVIDIA, NOEXPORT, AMD, AMD_LEAK, AMD_QUIRKS, ASCEND, ASCEND_DATA)
FOREMOST = (NVIDIA, AMD, AMD_QUIRKS, ASCEND)  # every time; the others with the slow tests
WHOLE = (NVIDIA, AMD)


def here() -> tuple[World, ...]:
    """A real GPU is NVIDIA's, as it is."""
    return (NVIDIA,) if ON_DEVICE else WORLDS


def everywhere(*, slow: Iterable[World] = ()) -> pytest.MarkDecorator:
    """Once in each world; in some of them only with the slow tests."""
    later = {*slow, *(world for world in WORLDS if world not in FOREMOST)}
    return pytest.mark.parametrize("machine", [at(world, slow=world in later) for world in here()], indirect=True)


def saved_whole() -> pytest.MarkDecorator:
    """Once in each world whose processes CRIU saves."""
    return pytest.mark.parametrize("machine", WHOLE, indirect=True, ids=lambda world: world.name)


def at(world: World, *more: Any, slow: bool = False, name: str = "") -> Any:
    """Parameters of a test: the fixture `machine` in that world, and what else it takes."""
    marks = [SLOW] if slow else []
    return pytest.param(world, *more, marks=marks, id="-".join(filter(None, (world.name, name))))
