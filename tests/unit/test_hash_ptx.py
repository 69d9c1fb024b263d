"""The PTX that ships is what the source says."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools/hash_ptx.py"
SOURCE = ROOT / "core/gcr/hashing/chunk_hash.h"
COMPILED = SOURCE.with_suffix(".ptx")


def compiled(source: str) -> str:
    """Its PTX, or what the compiler complains of."""
    try:
        importlib.metadata.distribution("nvidia-cuda-nvrtc-cu12")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cuda-nvrtc-cu12 is not installed")
    done = subprocess.run([sys.executable, TOOL, "-"], input=source, capture_output=True, text=True, timeout=60)
    assert done.stdout or done.returncode, done.stderr
    return done.stdout or done.stderr


def test_the_ptx_is_the_source_compiled() -> None:
    assert compiled(SOURCE.read_text()) == COMPILED.read_text(), "run tools/hash_ptx.py"


def test_another_source_makes_other_ptx() -> None:
    changed = SOURCE.read_text().replace("value >> 61", "value >> 60")
    assert changed != SOURCE.read_text()
    made = compiled(changed)
    assert ".visible .entry gcr_hash_chunks(" in made
    assert made != COMPILED.read_text()


def test_a_source_that_does_not_compile_says_where() -> None:
    said = compiled("nonsense")
    assert "chunk_hash.h" in said
    assert "error" in said


def test_every_driver_that_gcr_works_with_knows_this_ptx() -> None:
    """r570 speaks CUDA 12.8, that is PTX 8.7."""
    lines = COMPILED.read_text().splitlines()
    assert ".version 8.4" in lines
    assert ".target sm_70" in lines
    assert any(line.startswith(".visible .entry gcr_hash_chunks(") for line in lines)
