"""Every native part loads with glibc 2.28, though built with a newer one."""

import runpy
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from gcr import native

CHECK = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "tools/wheel_check.py")))


def native_files() -> list[Path]:
    try:
        folders = [native.shim_path().parent, native.sim_dir("nvidia").parent]
    except native.NativeMissing:
        return []
    found = {path.resolve() for folder in folders for path in (*folder.glob("*.so"), *folder.rglob("sim/**/*.so*"))}
    return sorted(found)


def made(folder: Path, source: str, *words: str) -> Path:
    product = folder / "made.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", product, "-x", "c", "-", "-x", "none", *words],
        input=source,
        text=True,
        check=True,
    )
    return product


@pytest.mark.skipif(not native_files(), reason="the native parts are not built")
def test_every_native_part_loads_with_an_old_libc() -> None:
    files = native_files()
    assert {"libgcr_shim.so", "libcuda.so.1", "libamdhip64.so.7", "libascendcl.so"} <= {path.name for path in files}
    for path in files:
        with path.open("rb") as file:
            assert (path.name, CHECK.too_new(file)) == (path.name, [])


def test_a_new_version_and_a_library_not_named_are_found(tmp_path: Path) -> None:
    """Also by the check of a whole wheel."""
    moved = '__asm__(".symver dlsym,dlsym@GLIBC_2.2.5"); void* dlsym(void*, char*); void* f() { return dlsym(0, "f"); }'
    assert CHECK.too_new(BytesIO(made(tmp_path, moved).read_bytes())) == ["dlsym without libdl.so.2"]
    named = made(tmp_path, moved, "-Wl,--no-as-needed", "-l:libdl.so.2")
    assert CHECK.too_new(BytesIO(named.read_bytes())) == []
    (tmp_path / "map").write_text("GLIBC_2.29 { global: *; };")
    libc = made(tmp_path, "int recent(void) { return 0; }", f"-Wl,--version-script={tmp_path / 'map'}")
    libc.rename(tmp_path / "libnew.so")
    user = made(tmp_path, "int recent(void); int f(void) { return recent(); }", str(tmp_path / "libnew.so"))
    wheel = tmp_path / "gpu_cr-0-py3-none-manylinux_2_29_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.write(user, "gcr/made.so")
    faults = CHECK.faults_of(wheel)
    assert faults == [f"{wheel.name}: its tag asks for more than glibc 2.28", "gcr/made.so: recent@GLIBC_2.29"]
