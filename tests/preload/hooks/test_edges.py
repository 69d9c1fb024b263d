"""Drivers newer than the list, absent drivers, drivers that come and go, and programs that never see one."""

import shutil
import sys
from pathlib import Path

import pytest


def test_what_the_list_does_not_know_is_handed_on_and_counted(compile_c, shim, driver, run):
    program = compile_c("future", "future.c", "-w")
    bare = run(program, path=driver)
    preloaded = run(program, path=driver, preload=[shim])
    assert "cuMemAlloc 14000: 0, calls cuMemAlloc_v9" in bare.out
    assert "cuNeverHeardOf 13050: 0, calls cuNeverHeardOf" in bare.out
    assert "itself: 1" in bare.out
    assert preloaded.out == bare.out
    assert preloaded.err.split() == ["cuMemAlloc", "cuNeverHeardOf", "cuDriverOnlyInThisFile"]


def test_a_driver_that_is_closed_and_opened_again(compile_c, shim, driver, run):
    program = compile_c("again", "again.c", "-w")
    bare = run(program, path=driver)
    assert bare.out == "0 cuLaunchKernel\n" * 3
    assert run(program, path=driver, preload=[shim]) == bare


def test_without_a_driver_a_weak_reference_answers_like_the_vendors_stub(compile_c, shim, run):
    """Bare it is null. We cannot be absent and present at once; CUDA_ERROR_STUB_LIBRARY says there is no driver."""
    program = compile_c("no_driver", "no_driver.c", "-w")
    bare = run(program).out
    assert bare.startswith("opened 0\ninit -1\nalloc -1\nlibcuda.so.1: cannot open")
    assert run(program, preload=[shim]).out == bare.replace("-1", "34")


def test_a_static_program_is_left_alone(workshop: Path, compile_c, shim, run):
    source = workshop / "static.c"
    source.write_text('#include <stdio.h>\nint main() { puts("static"); return 7; }\n')
    program = compile_c("static", source, "-static", "-fno-PIC")
    assert run(program, preload=[shim]) == run(program)
    assert run(program).code == 7


@pytest.mark.parametrize("command", [["sh", "-c", "echo out; echo err >&2; exit 3"], ["env"], ["ls", "/nowhere"]])
def test_programs_that_never_see_a_driver_print_the_same(command, shim, run):
    program = Path(shutil.which(command[0]) or command[0])
    bare = run(program, *command[1:])
    preloaded = run(program, *command[1:], preload=[shim])
    assert preloaded.code == bare.code
    assert preloaded.err == bare.err
    assert [line for line in preloaded.out.splitlines() if "LD_PRELOAD" not in line] == bare.out.splitlines()


def test_lookups_and_calls_are_cheap(compile_c, shim, driver, run):
    program = compile_c("cost", "cost.c", "-O2")
    runs = [run(program, path=driver, preload=preload) for preload in ([], [shim])]
    bare, preloaded = (dict(line.split() for line in each.out.splitlines()) for each in runs)
    for name, value in bare.items():
        print(f"{name:18} bare {float(value):9.1f}  preloaded {float(preloaded[name]):9.1f}")
    # Not a benchmark: only that nothing on these paths takes a system call, a lock or an allocation.
    assert float(preloaded["enqueue_call_ns"]) < 500
    assert float(preloaded["dlsym_hooked_ns"]) < 100_000


def test_the_check_for_real_drivers_reports_what_differs(driver, run):
    tool = Path(__file__).parents[3] / "tools/cuda_driver_check.py"
    done = run(Path(sys.executable), str(tool), "--driver", str(driver / "libcuda.so.1"))
    assert done.out == "not in the list: cuDriverOnlyInThisFile\n", done.err
    assert done.code == 1
