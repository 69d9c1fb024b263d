"""The PTX that ships is what the source says."""

import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hash_ptx", ROOT / "tools/hash_ptx.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.compiler()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{module.COMPILER} is not installed")
    return module


def test_the_ptx_is_the_source_compiled(tool: ModuleType) -> None:
    assert tool.compile_ptx(tool.SOURCE.read_text()) == tool.COMPILED.read_text(), "run tools/hash_ptx.py"


def test_another_source_makes_other_ptx(tool: ModuleType) -> None:
    changed = tool.SOURCE.read_text().replace("value >> 61", "value >> 60")
    assert tool.compile_ptx(changed) != tool.COMPILED.read_text()


def test_a_source_that_does_not_compile_says_where(tool: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"chunk_hash\.h.*error"):
        tool.compile_ptx("nonsense")


def test_every_driver_that_gcr_works_with_knows_this_ptx(tool: ModuleType) -> None:
    """r570 speaks CUDA 12.8, whose PTX is 8.7."""
    lines = tool.COMPILED.read_text().splitlines()
    assert ".version 8.4" in lines
    assert ".target sm_70" in lines
    assert any(line.startswith(".visible .entry gcr_hash_chunks(") for line in lines)
