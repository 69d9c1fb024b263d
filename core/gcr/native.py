"""Paths of the native parts: the shim, the hash library, the simulated drivers, and the SDK for other vendors.

They are installed into the package. `GCR_NATIVE_DIR` names a CMake build folder instead, to run from a source tree.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gcr.errors import Refused

SHIM = "libgcr_shim.so"
HASH = "libgcr_hash.so"
VARIABLE = "GCR_NATIVE_DIR"


class NativeMissing(Refused):
    """The shim or a simulated driver is not installed: reinstall gcr, or set `GCR_NATIVE_DIR`."""

    code = "native_missing"


def shim_path() -> Path:
    """The interposer that `gcr run` preloads. Raises NativeMissing."""
    return _find("the shim", [SHIM, f"shim/{SHIM}"])


def hash_path() -> Path:
    """The chunk hash on the processor. Raises NativeMissing."""
    return _find("the hash library", [HASH, f"shim/hash/{HASH}"])


def sim_dir(vendor: str) -> Path:
    """The folder of one vendor's simulated drivers, for LD_LIBRARY_PATH. Raises NativeMissing."""
    return _find(f"the simulated {vendor} driver", [f"sim/{vendor}", f"shim/sim/{vendor}"])


def own_simulator(path: Path) -> Path | None:
    """`path`, where it is the folder of a simulated driver of this installation; else None."""
    root = _root()
    beside = (root / "sim", root / "shim" / "sim")
    if path.parent in beside and re.fullmatch(r"[a-z][a-z0-9.-]*", path.name) and path.is_dir():
        return path
    return None


def sdk_dir() -> Path:
    """Sources and CMake functions for the shim of a vendor that gcr does not know. Raises NativeMissing."""
    return _find("the SDK", ["sdk"])


def _find(what: str, places: Sequence[str]) -> Path:
    root = _root()
    for place in places:
        path = root / place
        if path.exists():
            return path
    raise NativeMissing(
        f"{what} is not in {root}",
        hint=f"install gcr with pip, or build it and set {VARIABLE} to the build folder",
    )


def _root() -> Path:
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    for place in _package_folders():
        if (place / SHIM).exists():
            return place
    return _package_folders()[-1]


def _package_folders() -> list[Path]:
    """One folder in a wheel; in an editable install the sources and the built parts lie in two."""
    from importlib.resources import files  # slow, and GCR_NATIVE_DIR or no need of a native part spares it

    found = files("gcr")
    shim = Path(str(found / SHIM))
    return [shim.parent, Path(__file__).parent]
