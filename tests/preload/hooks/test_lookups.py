"""dlsym and dlvsym mean what they mean bare: what is found, what is not, how it fails, where the caller stands."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def meaning(compile_c) -> Path:
    b = compile_c("libmeaning_b.so", "meaning_lib.c", "-DNAME=b")
    a = compile_c("libmeaning_a.so", "meaning_lib.c", "-DNAME=a")
    return compile_c("meaning", "meaning.c", str(a), str(b), f"-Wl,-rpath,{a.parent}", "-Wl,--no-as-needed", "-w")


@pytest.mark.parametrize("how", ["none", "local", "global"])
def test_lookups_answer_as_bare(how, meaning, shim, driver, run):
    bare = run(meaning, how, path=driver)
    preloaded = run(meaning, how, path=driver, preload=[shim])
    assert bare.code == preloaded.code == 0
    assert preloaded.out == bare.out
    assert preloaded.err == ""


def test_the_program_does_tell_cases_apart(meaning, driver, run):
    """The comparison above is worth nothing unless these lines differ."""
    none, opened = run(meaning, "none", path=driver).out, run(meaning, "global", path=driver).out
    assert "a: next library b, default program" in none
    assert "undefined symbol: cuMemAlloc_v2" in none
    assert "default: found, no error, errno 77, calls cuMemAlloc_v2" in opened
    assert "memcpy: 1 1 1" in none


def test_a_local_driver_is_seen_by_the_plugin_that_needs_it_only(compile_c, shim, driver, run):
    plugin = compile_c("libplugin.so", "plugin.c", f"-L{driver}", "-l:libcuda.so.1")
    host = compile_c("plugin_host", "plugin_host.c", "-w")
    bare = run(host, str(plugin), path=driver)
    preloaded = run(host, str(plugin), path=driver, preload=[shim])
    assert "program: 0\nplugin: 1\ncalls cuLaunchKernel\nlinked: 0, calls cuInit" in bare.out
    assert preloaded.out == bare.out
    assert int(preloaded.err) == 2


def test_a_linked_program_is_gated_and_keeps_arguments_results_and_errno(compile_c, shim, driver, run):
    program = compile_c("linked", "linked.c", f"-L{driver}", "-l:libcuda.so.1")
    bare = run(program, path=driver)
    preloaded = run(program, path=driver, preload=[shim])
    assert bare.code == 0
    assert "errno 77" in bare.out
    assert "0x1 2 3 4 5 6 7 8 0x9 0xa 0xb" in bare.out
    assert preloaded.out == bare.out
    assert preloaded.err == "green 1 answered 3\n"


@pytest.mark.parametrize("shared", [False, True])
def test_a_library_asks_whenever_and_however_it_came(shared, compile_c, shim, driver, run):
    """Also one that no dlopen ever saw: the loader has no list of what such a one needs, and a handle of it, made of
    its link map, would crash the loader."""

    def library(name: str, *flags: str | Path) -> Path:
        text = [f"-DNAME={name}", f"-DSELF=lib{name}.so", "-Wl,-soname," + f"lib{name}.so", "-pthread"]
        return compile_c(f"lib{name}.so", "early_lib.c", *text, *flags, "-w")

    linked = [f"-L{driver}", "-Wl,--no-as-needed", "-l:libcuda.so.1"]
    start = library("start", "-DAT_START", *(linked if shared else []))
    plugins = [library("plugin"), library("plugin_with_driver", *linked)]
    program = compile_c("early", "early.c", str(start), f"-Wl,-rpath,{start.parent}", "-w")
    bare = run(program, *map(str, plugins), path=driver)
    preloaded = run(program, *map(str, plugins), path=driver, preload=[shim])
    assert (bare.code, preloaded.code) == (0, 0)
    assert preloaded.out.splitlines() == bare.out.splitlines()
    first = "found" if shared else "null"
    assert f"start constructor first: {first}" in bare.out
    assert "plugin_with_driver plugin with the driver first: found" in bare.out
