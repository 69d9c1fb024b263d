"""Programs linked to the HIP runtime by versioned symbols, and what an interposer sees of the runtime's own calls."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim_hip import TESTS, HipMachine, runtime
from simulated import ROOT

SYMBOLS = ROOT / "shim/sim/hip/symbols.def"
SONAMES = ["libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7"]
# Names that the real library calls through its PLT (seen in 5.2.3; there are more of other kinds) and this one too.
INTERPOSABLE = {
    "hipGetStreamDeviceId",
    "hipHostMalloc",
    "hipMallocPitch",
    "hipMemGetInfo",
    "hipMemcpy",
    "hipMemcpyAsync",
    "hipModuleLaunchKernel",
}


def compile_c(*arguments: object) -> None:
    subprocess.run(["cc", "-std=gnu11", "-O1", "-Wall", *map(str, arguments)], check=True, timeout=60)


def listed() -> dict[str, str]:
    """Symbol and version node, as symbols.def has them."""
    found = re.findall(r"^(?:API|PLAIN)\((hip_[\d.]+), (\w+)", SYMBOLS.read_text(), re.M)
    return {name: node for node, name in found}


def link_library(folder: Path, soname: str) -> Path:
    """Something with the name and the versions of a real runtime, to link against: it has nothing else."""
    nodes = sorted({tuple(map(int, node[4:].split("."))) for node in listed().values()})
    script, before = "", ""
    for node in ("hip_" + ".".join(map(str, parts)) for parts in nodes):
        names = "".join(f" {name};" for name, of in listed().items() if of == node)
        script += f"{node} {{ global:{names} }}{before};\n"
        before = f" {node}"
    (folder / "versions.map").write_text(script)
    (folder / "empty.c").write_text("".join(f"void {name}(void) {{}}\n" for name in listed()))
    made = folder / soname
    options = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={folder / 'versions.map'}"]
    compile_c("-shared", "-fPIC", *options, folder / "empty.c", "-o", made)
    return made


def build_victim(folder: Path, soname: str) -> Path:
    library, made = link_library(folder, soname), folder / "hip_victim"
    kernels = f'-DKERNELS="{runtime() / "kernels.so"}"'
    source = TESTS / "victims" / "hip_victim.c"
    compile_c(f"-I{ROOT / 'shim'}", kernels, source, library, "-pthread", "-o", made)
    return made


def run(machine: HipMachine, program: Path, *arguments: str, stdin: str = "", **env: str) -> list[str]:
    done = subprocess.run(
        [str(program), *arguments], env=machine.env | env, input=stdin, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("soname", SONAMES)
def test_a_program_linked_to_a_versioned_runtime_runs(tmp_path, soname):
    machine, victim = HipMachine(tmp_path), build_victim(tmp_path, soname)
    needs = subprocess.run(["readelf", "-VdW", victim], capture_output=True, text=True, check=True).stdout
    assert soname in needs
    assert {"hip_4.2", "hip_5.1", "hip_6.0"} <= set(re.findall(r"Name: (hip_[\d.]+)", needs))
    first = run(machine, victim)
    assert first == run(machine, victim)
    assert first == ["digest df824e7df1eb508e"]
    assert run(machine, victim, "--interactive", "1", "1", stdin="x\nx\n")[0] == "ready"


def test_whatever_name_is_asked_for_there_is_one_runtime(tmp_path):
    names = [*SONAMES, "libamdhip64.so", str(runtime() / "lib" / "libamdhip64.so")]
    program = f"""
        libraries = [ctypes.CDLL(name) for name in {names!r}]
        libraries[0].hipSetDevice(1)
        value = ctypes.c_int()
        say(*(library.hipGetDevice(ctypes.byref(value)) or value.value for library in libraries))
    """
    assert HipMachine(tmp_path).run(program) == ["1 1 1 1 1"]


def test_the_library_exports_the_list_and_nothing_else():
    names = subprocess.run(
        ["nm", "-D", "--defined-only", runtime() / "libamdhip64.so.7"], capture_output=True, text=True, check=True
    ).stdout
    exported = dict(re.findall(r" T (\w+)@@(hip_[\d.]+)", names))
    assert exported == listed()
    nodes = set(re.findall(r" A (\S+)", names))
    assert {"hip_5.6", "hip_7.2"} <= nodes  # also the nodes it has no symbol for
    assert not re.findall(r" [TDBRW] (?!\w+@@hip_)\w+", names)


def test_some_exported_names_are_called_through_the_plt():
    relocations = subprocess.run(
        ["readelf", "-rW", runtime() / "libamdhip64.so.7"], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"(hip\w+)@@hip_", relocations)) == INTERPOSABLE


INTERPOSER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int calls;
static void show(void) __attribute__((destructor));
static void show(void) { if (getenv("SHOW")) fprintf(stdout, "seen %d\\n", calls); }

int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** params, void** extra) {
    int (*real)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    *(void**)&real = dlsym(RTLD_NEXT, "hipModuleLaunchKernel");
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
"""


def test_an_unversioned_preload_sees_the_runtimes_own_calls(tmp_path):
    machine, victim = HipMachine(tmp_path), build_victim(tmp_path, "libamdhip64.so.6")
    source, preload = tmp_path / "interposer.c", tmp_path / "interposer.so"
    source.write_text(INTERPOSER)
    compile_c("-shared", "-fPIC", source, "-ldl", "-o", preload)
    # The victim calls hipLaunchKernel only: one lane, two fills, ten steps.
    seen = run(machine, victim, "1", "10", LD_PRELOAD=str(preload), SHOW="1")
    assert seen[-1] == "seen 12"
    assert seen[:-1] == run(machine, victim, "1", "10")


LOOKUPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

int marker;

void* dlsym(void* handle, const char* name) {
    void* (*real)(void*, const char*) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return strcmp(name, "hipFree") ? real(handle, name) : &marker;
}
"""


def test_lookups_go_through_the_programs_dlsym(tmp_path):
    """The real runtime does so: hipGetProcAddress returns the wrapper that an interposer gives for a name."""
    source, preload = tmp_path / "dlsym.c", tmp_path / "dlsym.so"
    source.write_text(LOOKUPS)
    compile_c("-shared", "-fPIC", source, "-ldl", "-o", preload)
    program = """
        library = ctypes.CDLL("libamdhip64.so.7")
        marker = ctypes.addressof(ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "marker"))
        found, status = ctypes.c_void_p(), ctypes.c_int(9)
        result = library.hipGetProcAddress(b"hipFree", ctypes.byref(found), 600, U64(0), ctypes.byref(status))
        say(result, status.value, found.value == marker)
    """
    assert HipMachine(tmp_path).run(program, LD_PRELOAD=str(preload)) == ["0 0 True"]


@pytest.mark.parametrize(
    ("name", "version", "flags", "found"),
    [
        ("hipMalloc", 600, 0, "hipMalloc"),
        ("hipGetDeviceProperties", 600, 0, "hipGetDevicePropertiesR0600"),
        ("hipStreamQuery", 600, 2, "hipStreamQuery_spt"),
        ("hipMalloc", 600, 2, "hipMalloc"),
        ("hipNothing", 600, 0, None),
    ],
)
def test_addresses_of_names(tmp_path, name, version, flags, found):
    program = f"""
        library = ctypes.CDLL("libamdhip64.so")
        pointer, status = ctypes.c_void_p(), ctypes.c_int(9)
        result = library.hipGetProcAddress({name.encode()!r}, ctypes.byref(pointer), {version}, U64({flags}),
                                           ctypes.byref(status))
        expected = {found!r} and ctypes.cast(getattr(library, {found!r}), ctypes.c_void_p).value
        say(result, status.value, pointer.value == expected)
    """
    assert HipMachine(tmp_path).run(program) == ["0 0 True" if found else "1 1 True"]


PARAMETERS = """
    library, module, function = ctypes.CDLL("libamdhip64.so"), ctypes.c_void_p(), ctypes.c_void_p()
    pointer = ctypes.c_void_p(int(check(hip.hipMalloc(64))))
    check(hip.hipMemset(pointer, 0, 64))
    assert library.hipModuleLoad(ctypes.byref(module), os.environ["GCR_SIM_KERNELS"].encode()) == 0
    assert library.hipModuleGetFunction(ctypes.byref(function), module, b"add") == 0
    def packed(value):
        return (ctypes.c_uint64 * 3)(pointer.value, 1, value)
    right, wrong, size = packed(3), packed(1 << 40), ctypes.c_size_t(24)
    address = lambda value: ctypes.addressof(value)
    each = (ctypes.c_void_p * 3)(*(address(right) + 8 * i for i in range(3)))
    # What comes after the end is not looked at.
    extra = (ctypes.c_void_p * 8)(1, address(right), 2, address(size), 3, 0, 1, address(wrong))
    one = [1] * 6 + [0]
"""


@pytest.mark.parametrize(
    ("params", "extra", "answers"),
    [("each", "None", (0, 3)), ("None", "extra", (0, 3)), ("None", "None", (1, 0))],
)
def test_a_kernel_takes_its_parameters_one_by_one_or_packed(tmp_path, params, extra, answers):
    program = f"""
    result = library.hipModuleLaunchKernel(function, *one, None, {params}, {extra})
    say(result, int.from_bytes(read(pointer.value, 8), "little"))
"""
    assert HipMachine(tmp_path).run(PARAMETERS + program) == [" ".join(map(str, answers))]


def test_the_hip_python_victim_prints_the_same_in_both_generations(tmp_path):
    victim = str(TESTS / "victims" / "hip_victim.py")
    lines = []
    for generation in ("7.2", "10"):
        machine = HipMachine(tmp_path, generation)
        done = subprocess.run(
            [sys.executable, victim, "--steps", "5"],
            env=machine.env,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=os.fspath(tmp_path),
        )
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout)
    assert lines[0] == lines[1]
    assert re.fullmatch(r"digest [0-9a-f]{64}\n", lines[0])
