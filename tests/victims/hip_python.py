"""The two generations of hip-python, unmodified, each in a folder of its own: they cannot be installed side by side.

They differ in signatures and in how they find the runtime. `python hip_python.py` prepares both; `make` does so before
the tests. Nothing of gcr is imported here.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = {
    "7.2": ("hip-python==7.2.2.562.43",),
    "10": ("hip-python==10.0.0.0.1.2", "rocm-bindings-core==10.0.0.0.1.2", "rocm-bindings-hip==10.0.0.0.1.2"),
}


def folder(version: str) -> Path:
    """Returns the folder for PYTHONPATH of that generation; fetched at the first use. Raises CalledProcessError."""
    home = ROOT / "build" / "hip-python"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = home / f"{version}-{sys.version_info.major}.{sys.version_info.minor}"
        if not made.is_dir():
            _install(REQUIREMENTS[version], made)
    return made


def _install(requirements: tuple[str, ...], made: Path) -> None:
    scratch = made.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    options = ["--no-compile", "--only-binary", ":all:", "--root-user-action", "ignore", "--target", str(scratch)]
    subprocess.run([*pip, *options, *requirements], check=True, timeout=300)
    scratch.rename(made)


def environment(version: str, runtime: Path) -> dict[str, str]:
    """Variables under which a program imports that generation and finds the runtime in `runtime`."""
    path = os.pathsep.join([str(folder(version)), str(Path(__file__).parent)])
    return {"PYTHONPATH": path, "LD_LIBRARY_PATH": str(runtime), "ROCM_PATH": str(runtime)}


if __name__ == "__main__":
    for each in REQUIREMENTS:
        folder(each)
