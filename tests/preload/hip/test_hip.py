"""The HIP half of the shim on the SIMULATED runtime: how calls come to it, and what a program is told."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gcr.native import shim_path, sim_dir

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 60


def build(folder: Path, source: str, *flags: str) -> Path:
    program = folder / source.removesuffix(".c")
    words = ["cc", "-Wall", "-Werror", "-D_GNU_SOURCE", f"-I{ROOT / 'shim'}", "-o", program, PROGRAMS / source, *flags]
    subprocess.run([str(word) for word in words], check=True, timeout=SECONDS)
    return program


def linked(folder: Path, source: str) -> Path:
    return build(folder, source, f"-L{sim_dir('amd')}", "-l:libamdhip64.so.7", "-ldl")


def environment(folder: Path, **more: str) -> dict[str, str]:
    paths = f"{sim_dir('amd')}:{sim_dir('nvidia')}"
    return {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": paths, "GCR_SIM_STATE": str(folder / "machine"), **more}


def output(program: Path, env: Mapping[str, str], *, shim: bool) -> str:
    preload = {"LD_PRELOAD": str(shim_path())} if shim else {}
    done = subprocess.run([program], env={**env, **preload}, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_way_to_a_symbol_leads_through_the_shim(tmp_path: Path) -> None:
    program, env = linked(tmp_path, "ways.c"), environment(tmp_path)
    assert {line.split()[-1] for line in output(program, env, shim=False).splitlines()[:7]} == {"runtime"}
    lines = output(program, env, shim=True).splitlines()
    assert lines[:6] == [f"{way} 0 shim" for way in ("linked", "handle", "version", "default", "next", "asked")]
    assert lines[6] == "inside 0 runtime"
    assert lines[7] == "variants 1 1"


def test_without_a_runtime_a_program_finds_no_symbol_of_it(tmp_path: Path) -> None:
    program, env = build(tmp_path, "ways.c", "-DABSENT", "-ldl"), environment(tmp_path)
    assert output(program, env, shim=True) == output(program, env, shim=False)
    assert output(program, env, shim=True).split()[1::2] == ["0", "1", "0", "1", "0"]


@pytest.mark.parametrize("quirks", ["", "leak", "leak-hard", "noexport", "elsewhere"])
@pytest.mark.parametrize("version", ["6.4", "7.2"])
def test_a_program_is_told_the_same_bare_and_under_the_shim(tmp_path: Path, quirks: str, version: str) -> None:
    env = environment(tmp_path, GCR_SIM_QUIRKS=quirks, GCR_SIM_HIP_VERSION=version)
    program = linked(tmp_path, "facts.c")
    assert output(program, env, shim=True) == output(program, env, shim=False)


def test_a_runtime_that_is_too_old_is_left_alone(tmp_path: Path) -> None:
    program, env = linked(tmp_path, "ways.c"), environment(tmp_path, GCR_SIM_HIP_VERSION="5.2")
    assert output(program, env, shim=True).splitlines()[0] == "linked 0 runtime"


def test_one_shim_serves_two_vendors_in_one_process(tmp_path: Path) -> None:
    """Requests and held memory of one vendor never reach the other. Hand-overs of both at once: tests/native/device."""
    program = build(tmp_path, "both.c", "-ldl")
    env = environment(tmp_path)
    answers = []
    for preload in ({}, {"LD_PRELOAD": str(shim_path())}):
        done = subprocess.run(
            [program], env={**env, **preload}, input="a\nb\n", capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, (done.returncode, done.stderr)
        answers.append(done.stdout)
    assert answers[0] == answers[1]
    mib = 1 << 20
    assert answers[0].splitlines() == ["ready", *[f"{9 * mib} {15 * mib}"] * 2]
