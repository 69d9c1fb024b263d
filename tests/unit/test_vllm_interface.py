"""gcr's backend and the stand-in that it is tested with, against vLLM's source, which GCR_VLLM_SOURCE names.

vLLM needs a GPU, and its package is 340 MB. So CI leaves this out; its source archive is enough here.
"""

import ast
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "victims" / "vllm_standin"
INTERFACE = "vllm/device_allocator/sleep_mode_backend.py"
SOURCE = os.environ.get("GCR_VLLM_SOURCE", "")


def methods(path: Path, name: str) -> dict[str, str]:
    """Returns the public methods of a class, with their parameters and whether they are abstract, or of the class."""
    tree = ast.parse(path.read_text())
    (found,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name]
    return {
        each.name: f"{[ast.unparse(one) for one in each.decorator_list]} {ast.unparse(each.args)}"
        for each in found.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
    }


def real(path: str) -> Path:
    if not SOURCE:
        pytest.skip("GCR_VLLM_SOURCE names no folder with vLLM's source")
    return Path(SOURCE) / path


@pytest.mark.parametrize("name", ["SleepModeBackend", "SleepModeBackendFactory"])
def test_the_standin_has_the_methods_of_the_real_one(name: str) -> None:
    theirs, ours = methods(real(INTERFACE), name), methods(STANDIN / INTERFACE, name)
    assert {each: theirs.get(each) for each in ours} == ours
    abstract = {each for each, how in theirs.items() if "abstractmethod" in how}
    assert abstract <= {*methods(ROOT / "integrations/vllm/gcr_vllm/backend.py", "GcrBackend")}


def test_a_worker_asks_only_what_is_answered_between_sleep_and_wake() -> None:
    """Any other call of the driver would wait for the wake, which the worker would never hear of."""
    tree = ast.parse(real("vllm/v1/worker/gpu_worker.py").read_text())
    (worker,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Worker"]
    (sleep,) = [each for each in worker.body if isinstance(each, ast.FunctionDef) and each.name == "sleep"]
    calls = [ast.unparse(each.func) for each in ast.walk(sleep) if isinstance(each, ast.Call)]
    lines = ast.unparse(sleep).splitlines()
    (at,) = [number for number, line in enumerate(lines) if "suspend(level)" in line]
    after = "\n".join(lines[at + 1 :])
    asked = {call for call in calls if call.startswith("torch.") and f"{call}(" in after}
    assert asked == {"torch.accelerator.synchronize", "torch.accelerator.get_memory_info"}
