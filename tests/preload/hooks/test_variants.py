"""Every symbol, by every way to reach it: the driver's function that is called must be the one a bare program calls."""

from pathlib import Path

import pytest
from _pytest.fixtures import FixtureRequest

WAYS = ["handle", "global", "program", "proc1", "proc2", "mixed"]


@pytest.fixture(scope="module")
def program(compile_c, driver: Path) -> Path:
    return compile_c("every_symbol", "every_symbol.c", f"-I{driver}", "-w")


@pytest.mark.parametrize("drivers", ["driver", "loose_driver"])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_function_of_the_driver_is_called(way, drivers, program, shim, run, request: FixtureRequest):
    path = request.getfixturevalue(drivers)
    bare = run(program, way, path=request.getfixturevalue("driver"))
    preloaded = run(program, way, path=path, preload=[shim])
    assert bare.code == preloaded.code == 0
    assert bare.out.count("\n") > 600
    assert preloaded.out == bare.out


@pytest.mark.parametrize("way", WAYS)
def test_every_hooked_symbol_passes_the_gate(way, program, shim, driver, run, listed):
    hooked = sum(1 for entry in listed if entry.kind not in ("", "LOOKUP"))
    entered = int(run(program, way, path=driver, preload=[shim]).err)
    assert entered == hooked if way in ("handle", "global", "program") else entered > 1000


def test_bare_output_really_tells_the_variants_apart(program, driver, run):
    lines = run(program, "proc2", path=driver).out.splitlines()
    assert "cuCtxCreate 12000 0 = 0 0 -> cuCtxCreate_v3 1" in lines
    assert "cuCtxCreate 13050 0 = 0 0 -> cuCtxCreate_v4 1" in lines
    assert "cuMemcpyHtoD 13000 2 = 0 0 -> cuMemcpyHtoD_v2_ptds 1" in lines
    assert "cuMemcpyHtoD 4000 2 = 0 0 -> cuMemcpyHtoD_v2 1" in lines
    assert "cuGraphInstantiate 12000 0 = 0 0 -> cuGraphInstantiate_v2 1" in lines
    assert "cuMemCreate 1000 0 = 500 1 -> none" in lines
