"""Victims on the SIMULATED driver: the same output every time, bare and with the shim loaded."""

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gcr.native import shim_path, sim_dir

sys.path.insert(0, str(Path(__file__).parent))

import p2p_model
import told
from acl_runtime import acl
from c_library import Library, out
from cuda_driver import driver
from device import MIB
from hip_runtime import hip

HERE = Path(__file__).parent
SHIM = HERE.parents[1] / "shim"
SECONDS = 60
LIBRARIES = {"cuda": (driver, ("cuda.h", "cuda_structs.h")), "hip": (hip, ("hip.h",)), "acl": (acl, ("acl.h",))}

SHORT: Sequence[tuple[str, ...]] = (
    ("vmm_victim.py", "--steps", "60"),
    ("vmm_victim.py", "--steps", "60", "--exportable"),
    ("alloc_victim.py", "--steps", "150"),
    ("alloc_victim.py", "--steps", "150", "--kernels", "KERNELS"),
    ("alloc_victim.py", "--steps", "150", "--ordered", "--kernels", "KERNELS"),
    ("ranks_victim.py", "--steps", "4", "--kernels", "KERNELS"),
    ("p2p_victim.py", "--steps", "6", "--kernels", "KERNELS"),
    ("c_victim", "3", "2", "60"),
)


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(sim_dir("nvidia")),
        "GCR_SIM_STATE": str(tmp_path),
        "GCR_SIM_DEVICES": "4",
    }


@pytest.fixture(scope="module")
def c_victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("c") / "c_victim"
    words = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", program, HERE / "c_victim.c", "-ldl", "-lpthread"]
    subprocess.run(words, check=True, timeout=SECONDS)
    return program


def run(words: Sequence[str], c_victim: Path, environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    name, *rest = words
    rest = [str(sim_dir("nvidia") / "kernels.so") if word == "KERNELS" else word for word in rest]
    start = [str(c_victim)] if name == "c_victim" else [sys.executable, str(HERE / name)]
    return subprocess.run(
        [*start, *rest], env=dict(environment), capture_output=True, text=True, timeout=SECONDS, check=False
    )


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_a_victim_prints_the_same_twice_and_with_the_shim(
    words: Sequence[str], c_victim: Path, environment: Mapping[str, str]
) -> None:
    first, second = (run(words, c_victim, environment) for _ in range(2))
    assert (first.returncode, first.stderr.count("Traceback")) == (0, 0), first.stderr
    assert "digest" in first.stdout
    assert second.stdout == first.stdout
    preloaded = run(words, c_victim, {**environment, "LD_PRELOAD": str(shim_path())})
    assert (preloaded.returncode, preloaded.stdout) == (0, first.stdout), preloaded.stderr


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (4, ()),
        (3, ("--collective", "peer_reduce", "--meet", "twice")),
        (2, ("--one-device", "--meet", "cached")),
        (3, ("--meet", "legacy")),
        (2, ("--one-device", "--meet", "small")),
    ],
    ids=["asked", "twice", "cached, one device", "legacy", "small, one device"],
)
def test_ranks_that_lend_each_other_memory_say_what_follows_from_their_numbers(
    ranks: int, more: Sequence[str], c_victim: Path, environment: Mapping[str, str], tmp_path: Path
) -> None:
    """In so many steps memory is lent in each way, and freed by its owner first, and by its borrower first."""
    steps = 2 * len(p2p_model.WAYS) + 3
    words = ("p2p_victim.py", "--steps", str(steps), "--kernels", "KERNELS", "--ranks", str(ranks), *more)
    done = run(words, c_victim, environment)
    assert (done.returncode, done.stdout.splitlines()) == (0, p2p_model.Model(ranks).run(steps)), done.stderr
    assert not (tmp_path / "violations").exists()


def test_another_seed_is_another_digest(c_victim: Path, environment: Mapping[str, str]) -> None:
    outputs = {run(("vmm_victim.py", "--seed", str(seed)), c_victim, environment).stdout for seed in (1, 2)}
    assert len(outputs) == 2


def test_the_counters_prove_work(c_victim: Path, environment: Mapping[str, str], tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    words = ("alloc_victim.py", "--seconds", "1.5", "--threads", "2", "--progress", str(progress))
    done = run(words, c_victim, environment)
    assert (done.returncode, done.stdout) == (0, "verified\n"), done.stderr
    begun = [int(number) for number in re.findall(r"\d+", done.stderr)]
    counters = struct.unpack("<4Q", progress.read_bytes())
    assert len(begun) == 2 and all(begun)
    assert all(0 < counters[2 * thread] <= begun[thread] for thread in range(2))
    assert all(0 < counters[2 * thread + 1] <= begun[thread] for thread in range(2))


@pytest.mark.parametrize(("transport", "p2p", "shm"), [("p2p", None, None), ("shm", "1", None), ("sockets", "1", "1")])
@pytest.mark.parametrize("own", [None, "1"])
def test_pytorch_s_ranks_get_the_transport_and_no_multicast_of_their_own(
    transport: str, p2p: str | None, shm: str | None, own: str | None
) -> None:
    """PyTorch is not here: the ranks are not started, and their environment is shown."""
    code = f"""
import json, os, sys
import distributed_victim
sys.argv[1:] = ["--hold", "--transport", {transport!r}]
distributed_victim.Ranks = lambda count, *_: count
distributed_victim.perform = lambda _options, count: print(json.dumps([count, dict(os.environ)]))
distributed_victim.main()
"""
    before = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "TORCH_"))}
    mine = {"NCCL_NVLS_ENABLE": own} if own else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**before, **mine, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    count, there = json.loads(done.stdout)
    assert count == 2
    assert (there.get("NCCL_P2P_DISABLE"), there.get("NCCL_SHM_DISABLE")) == (p2p, shm)
    assert (there["NCCL_NVLS_ENABLE"], there["TORCH_SYMM_MEM_DISABLE_MULTICAST"]) == (own or "0", "1")


def test_a_wrong_word_is_seen(environment: Mapping[str, str]) -> None:
    """The oracle itself: a model that expects something else must end the victim with an error."""
    spoil = "import alloc_victim as v; v.Worker.overwrite = lambda self: setattr(self.arrays[0], 'value', 12345)\n"
    code = f"import sys; sys.argv[1:] = ['--steps', '150']\n{spoil}v.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "is not all 12345" in done.stderr


@pytest.mark.parametrize("size", [1, 250, MIB, told.STEP, told.STEP + 1, 5 * MIB + 3])
@pytest.mark.parametrize("seed", [0, 11, 250, 251, 1 << 21])
def test_of_a_pattern_each_byte_is_looked_at(size: int, seed: int) -> None:
    found = bytearray(told.pattern(size, seed))
    assert told.is_pattern(found, seed)
    assert not told.is_pattern(found, seed + 1)
    for at in {0, size // 2, size - 1, *(edge for edge in (told.STEP - 1, told.STEP, 2 * told.STEP) if edge < size)}:
        found[at] ^= 1
        assert not told.is_pattern(found, seed), at
        found[at] ^= 1


ARGUMENTS = """
#include <tuple>
template <class> struct of;
template <class... A> struct of<void(*)(A...)> { using arguments = std::tuple<A...>; };
"""


def sizes_in_c(library: Library, hooks: str) -> str:
    """Returns C++ that compiles if each argument, and all that one points to, has the same size here and there."""
    lines = []
    for name, types in library.calls.items():
        found = re.search(rf"^GCR_HOOK\({name}, .*?, \(([^()]*)\), \([^()]*\)\)$", hooks, re.MULTILINE)
        assert found, name
        lines.append(f"using {name}_ = of<void(*)({found[1]})>::arguments;")
        lines.append(f"static_assert(std::tuple_size_v<{name}_> == {len(types)});")
        for number, each in enumerate(types):
            there = f"std::tuple_element_t<{number}, {name}_>"
            lines.append(f"static_assert(sizeof({there}) == {8 if isinstance(each, out) else ctypes.sizeof(each)});")
            pointed = each.type if isinstance(each, out) else getattr(each, "_type_", "")
            if not isinstance(pointed, str):
                lines.append(f"static_assert(sizeof(std::remove_pointer_t<{there}>) == {ctypes.sizeof(pointed)});")
    return "\n".join(lines)


@pytest.mark.parametrize("vendor", LIBRARIES)
def test_the_types_of_the_calls_are_those_of_the_vendors_header(vendor: str, tmp_path: Path) -> None:
    library, headers = LIBRARIES[vendor]
    includes = "".join(f'#include "abi/{each}"\n' for each in headers)
    hooks = (SHIM / f"src/hooks/{vendor}.def").read_text()
    source = tmp_path / "sizes.cpp"
    source.write_text(f"{includes}{ARGUMENTS}using namespace gcr::{vendor}_abi;\n{sizes_in_c(library, hooks)}")
    words = ["c++", "-std=c++17", "-fsyntax-only", f"-I{SHIM}", str(source)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
