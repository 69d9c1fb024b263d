"""CRIU's plugins: what saves the state that a vendor's kernel driver keeps of a process, for CRIU.

A backend declares the plugin that its processes need, in its `gcr.toml`. CRIU gets that one and no other.
"""

from collections.abc import Sequence
from pathlib import Path

from gcr.config import load
from gcr.declarations import declarations
from gcr.errors import CriuUnusable
from gcr.native import sim_dir

FOLDERS = ("/usr/lib/criu", "/usr/local/lib/criu", "/usr/lib64/criu", "/usr/libexec/criu")
_SIMULATED_FILES = ("/dev/fuse",)  # stands for a device file, in a process of a simulated driver
_SIMULATED_FOLDER = "criu"  # beside the simulated driver


def plugins_of(backend: str, simulated: bool) -> Sequence[Path]:
    """Returns the plugins that CRIU needs for processes of a backend. Raises CriuUnusable for one that is missing."""
    name = _declared(backend)
    if not name:
        return []
    found = find(name, [str(sim_dir(backend) / _SIMULATED_FOLDER)] if simulated else ())
    if found is None:
        text = f"CRIU has no {name}: processes of {backend} cannot be saved without it"
        raise CriuUnusable(text, hint="install it, or set `criu_plugins` to its folder")
    return [found]


def find(name: str, otherwise: Sequence[str] = ()) -> Path | None:
    """Looks in the folder of the setting `criu_plugins`; without one in those given, or where CRIU installs its own."""
    chosen = load().criu_plugins
    folders = [chosen] if chosen else otherwise or FOLDERS
    return next((path for folder in folders if (path := Path(folder, name)).is_file()), None)


def files_saved(backend: str, simulated: bool) -> Sequence[str]:
    """Returns the beginnings of paths of device files that the plugin of a backend saves."""
    declared = declarations().get(backend)
    if declared is None or not declared.criu_plugin:
        return []
    return [*declared.criu_files, *(_SIMULATED_FILES if simulated else ())]


def _declared(backend: str) -> str:
    declared = declarations().get(backend)
    return declared.criu_plugin if declared else ""
