"""A user's own LD_PRELOAD behind ours, and programs that interpose: none is left out, none calls itself."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def chained(compile_c, driver: Path) -> Path:
    return compile_c("chained", "chained.c", f"-L{driver}", "-l:libcuda.so.1")


# A loose driver gives a preload that asks cuGetProcAddress for its own name itself, bare as well: left out.
@pytest.mark.parametrize(
    ("drivers", "how"),
    [("driver", "NEXT"), ("driver", "OPEN"), ("driver", "PROC"), ("loose_driver", "NEXT"), ("loose_driver", "OPEN")],
)
def test_a_users_preload_is_chained(drivers, how, chained, compile_c, shim, run, request):
    path = request.getfixturevalue(drivers)
    user = compile_c(f"libuser_{how}.so", "user_preload.c", f"-D{how}")
    bare = run(chained, path=path, preload=[user])
    preloaded = run(chained, path=path, preload=[shim, user])
    assert bare.code == 0
    assert bare.out.count("preload sees 100 bytes") == 4
    assert preloaded.out == bare.out
    assert int(preloaded.err) == 4


def test_two_users_preloads_are_chained(chained, compile_c, shim, driver, run):
    first = compile_c("libuser_first.so", "user_preload.c", "-DNEXT")
    second = compile_c("libuser_second.so", "user_preload.c", "-DOPEN")
    bare = run(chained, path=driver, preload=[first, second])
    preloaded = run(chained, path=driver, preload=[shim, first, second])
    assert "preload sees 101 bytes" in bare.out
    assert preloaded.out == bare.out


def test_a_preload_before_ours_reaches_us(chained, compile_c, shim, driver, run):
    user = compile_c("libuser_before.so", "user_preload.c", "-DNEXT")
    bare = run(chained, path=driver, preload=[user])
    preloaded = run(chained, path=driver, preload=[user, shim])
    assert preloaded.out == bare.out
    assert int(preloaded.err) == 4


def test_a_preload_that_wraps_the_lookup_itself_still_sees_it(compile_c, shim, driver, run):
    user = compile_c("libuser_proc.so", "user_preload.c", "-DNEXT", "-DWRAP_PROC")
    program = compile_c("asks", "asks.c", f"-L{driver}", "-l:libcuda.so.1", "-w")
    bare = run(program, path=driver, preload=[user])
    preloaded = run(program, path=driver, preload=[shim, user])
    assert "preload sees a lookup of cuLaunchKernel" in bare.out
    assert preloaded.out == bare.out
    assert int(preloaded.err) == 2  # the lookup is one of them


def test_a_preload_that_exports_dlsym_is_chained(chained, compile_c, shim, driver, run):
    user = compile_c("libuser_dlsym.so", "dlsym_preload.c")
    bare = run(chained, path=driver, preload=[user])
    preloaded = run(chained, path=driver, preload=[shim, user])
    assert bare.code == 0
    assert preloaded.code == 0
    assert "preload saw 3 lookups" in bare.out
    assert preloaded.out == bare.out


def test_a_program_that_interposes_goes_on_to_us(compile_c, shim, driver, run):
    program = compile_c("interposer", "interposer.c", f"-L{driver}", "-l:libcuda.so.1", "-rdynamic")
    bare = run(program, path=driver)
    preloaded = run(program, path=driver, preload=[shim])
    assert bare.out == "program's own\n0 cuLaunchKernel\n"
    assert preloaded.out == bare.out
    assert int(preloaded.err) == 1
