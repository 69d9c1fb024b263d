"""Calls that do not come through ACL alone: launches of the runtime below, and another vendor's library beside it."""

import os
import re
import subprocess
import sys
from pathlib import Path

from gcr.native import shim_path, sim_dir

ROOT = Path(__file__).parents[3]
IMPORTED = (ROOT / "tests" / "victims", ROOT / "core", ROOT / "backends" / "ascend")
SECONDS = 60


def run(command: list[str], env: dict[str, str]) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("GCR_SOCKET", "LD_PRELOAD")}
    done = subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launches() -> dict[str, list[str]]:
    """The entry points of the runtime that the list has, with their parameters."""
    text = (ROOT / "shim/src/hooks/acl.def").read_text()
    found = re.findall(r"^GCR_HOOK\((rts?[A-Z]\w+), ENQUEUE, \((.*?)\), \(", text, re.M)
    return {name: parameters.split(", ") for name, parameters in found}


def runtime_in_c(calls: dict[str, list[str]]) -> tuple[str, str]:
    """A libruntime.so that says what it was called with, and a program that calls all of it."""
    library = program = "#include <stdint.h>\n#include <stdio.h>\n"
    body = ""
    for name, parameters in calls.items():
        words = [each.rpartition(" ")[2] for each in parameters]
        says = "".join(f'printf(" %lx", (unsigned long)(uintptr_t){word});' for word in words)
        signature = f"int {name}({', '.join(parameters)})"
        library += f'{signature} {{ printf("{name}"); {says} puts(""); return {len(words)}; }}\n'
        program += f"{signature};\n"
        given = ", ".join(
            f"({each.rpartition(' ')[0]})(uintptr_t){4096 * (1 + index)}" for index, each in enumerate(parameters)
        )
        body += f'    printf("%d\\n", {name}({given}));\n'
    return library, f"{program}int main(void) {{\n{body}    return 0;\n}}\n"


def test_launches_below_acl_reach_the_runtime_with_all_their_arguments(tmp_path: Path) -> None:
    calls = launches()
    assert len(calls) >= 12
    library, program = runtime_in_c(calls)
    (tmp_path / "runtime.c").write_text(library)
    (tmp_path / "program.c").write_text(program)
    shared = ["-shared", "-fPIC", "-Wl,-soname,libruntime.so", "-o", str(tmp_path / "libruntime.so")]
    run(["cc", "-w", *shared, str(tmp_path / "runtime.c")], {})
    run(["cc", "-w", "-o", str(tmp_path / "program"), str(tmp_path / "program.c"), f"-L{tmp_path}", "-lruntime"], {})
    env = {"LD_LIBRARY_PATH": str(tmp_path)}
    bare = run([str(tmp_path / "program")], env)
    assert bare.count("\n") == 2 * len(calls)
    assert run([str(tmp_path / "program")], {**env, "LD_PRELOAD": str(shim_path())}) == bare


def test_one_process_uses_two_vendors_libraries(tmp_path: Path) -> None:
    program = """
import ctypes, os
from acl_calls import *
cuda = ctypes.CDLL(os.path.join(os.environ["CUDA"], "libcuda.so.1"))
context, address, found = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(16)
say(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context))
say(cuda.cuMemAlloc_v2(ctypes.byref(address), 3 * MiB), cuda.cuMemsetD8_v2(address, 7, 3 * MiB))
use()
ours = acl.aclrtMalloc(3 * MiB, 0)
write(ours, pattern(3 * MiB))
say(read(ours, 3 * MiB) == pattern(3 * MiB), cuda.cuMemcpyDtoH_v2(found, address, 16), found.raw.hex())
say(cuda.cuMemFree_v2(address), code("aclrtFree", ours), code("aclrtFree", ours), cuda.cuMemFree_v2(address))
"""
    env = {
        "CUDA": str(sim_dir("nvidia")),
        "LD_LIBRARY_PATH": str(sim_dir("ascend")),
        "PYTHONPATH": os.pathsep.join(map(str, IMPORTED)),
    }
    command = [sys.executable, "-c", program]
    bare = run(command, {**env, "GCR_SIM_STATE": str(tmp_path / "bare")})
    assert "True 0 0707" in bare
    preloaded = run(command, {**env, "GCR_SIM_STATE": str(tmp_path / "ours"), "LD_PRELOAD": str(shim_path())})
    assert preloaded == bare
