"""Facts that plugins declare about their vendors in a file, `gcr.toml`, in the plugin's package.

The daemon needs them to recognise a process that uses a device, and it runs no plugin's code. So they are read, not
asked: a table for each backend of the plugin.

    [acme]
    libraries = ["libacme.so"]
    device_files = ["/dev/acme"]

A plugin without the file works as well, but the daemon does not recognise processes that gcr hears nothing of.
"""

import importlib
import logging
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from msgspec import DecodeError, Meta, Struct, toml

from gcr.entrypoints import modules_in_environment, plugin_modules

log = logging.getLogger(__name__)

FILE = "gcr.toml"
SETTLED_SECONDS = 10.0  # a folder that changed more recently may be in the middle of an installation
MAX_BYTES = 65536

Library = Annotated[str, Meta(pattern=r"\Alib[A-Za-z0-9_+.-]+\.so[0-9.]*\Z", max_length=100)]
DeviceFile = Annotated[str, Meta(pattern=r"\A/dev/[A-Za-z0-9][A-Za-z0-9_./-]*\Z", max_length=100)]
_NEVER = "(?!LD_|GCR_|PYTHON)"  # variables that load code, and gcr's own
Beginning = Annotated[str, Meta(pattern=rf"\A{_NEVER}[A-Z][A-Z0-9]+_\Z", max_length=100)]
Variable = Annotated[str, Meta(pattern=rf"\A{_NEVER}[A-Z][A-Z0-9]*_[A-Z0-9_]+\Z", max_length=100)]
Value = Annotated[str, Meta(pattern=r"\A[\x21-\x7e]*\Z", max_length=100)]
Installed = tuple[tuple[str, int], ...]
"""Folders with the times of their last changes, and modules with no time."""


class Declaration(Struct, frozen=True, forbid_unknown_fields=True):
    """One backend's. `libraries`: files of the driver, up to `.so`; a process that maps one can use a device.

    `device_files`: beginnings of the paths that a process has open once it uses a device. `vendor`: its number in
    gcr's own shim (codes.h, Vendor); 0 for a backend that brings a shim. `keeps`: beginnings of the names of variables
    that the daemon and its helpers inherit. `sets`: variables that a program gets where its user has not set them.
    `criu_plugin`: the file name of the plugin with which CRIU saves what the driver keeps of a process; empty where gcr
    takes all of that off the device first. `criu_files`: beginnings of more device files, which that plugin saves.
    """

    libraries: Annotated[tuple[Library, ...], Meta(min_length=1)]
    device_files: tuple[DeviceFile, ...] = ()
    vendor: Annotated[int, Meta(ge=0)] = 0
    keeps: tuple[Beginning, ...] = ()
    sets: dict[Variable, Value] = {}
    criu_plugin: Annotated[str, Meta(pattern=r"\A([A-Za-z0-9_-]+\.so)?\Z", max_length=100)] = ""
    criu_files: tuple[DeviceFile, ...] = ()


def declarations() -> Mapping[str, Declaration]:
    """Returns the declarations of all plugins by backend, gcr's own vendors first. Never raises for one of them.

    They are read once, and again when a folder of `sys.path` has changed: a plugin may be installed at any time.
    """
    return _read(_installed())


def settings_of_programs(backend: str | None, own_shim: bool) -> Mapping[str, str]:
    """Returns the variables that programs of a job get unless they are set: the ones of the backend that it names.

    own_shim: the job has gcr's, which serves all vendors that it knows. Theirs are in it, too.
    """
    known = declarations().items()
    serving = [each for name, each in known if name == backend or (own_shim and each.vendor)]
    return {name: value for each in serving for name, value in each.sets.items()}


def declared_by(module: str) -> Mapping[str, Declaration]:
    """Returns the declarations of a plugin's package, empty without a file. Runs no code of it.

    Raises ValueError for a file that is none of TOML or says something else.
    """
    found = next((each for folder in _folders(module) if (each := folder / FILE).is_file()), None)
    if found is None:
        return {}
    with found.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"{found} is larger than {MAX_BYTES} bytes")
    try:
        return toml.decode(text, type=dict[str, Declaration])
    except DecodeError as error:
        raise ValueError(f"{found}: {error}") from error


def broken_declarations() -> Mapping[str, str]:
    """Returns the plugins of which the file cannot be used, by module, and why."""
    return {module: error for module in plugin_modules() if isinstance(error := _tried(module), str)}


def _installed() -> Installed:
    """Returns a value that differs after an installation, and each second while one may go on."""
    folders = [(entry, _changed(entry)) for entry in sys.path]
    now = time.time()
    settled = now - max((changed for _, changed in folders), default=0) / 1e9 > SETTLED_SECONDS
    return (*folders, *((module, 0) for module in modules_in_environment()), ("", 0 if settled else int(now)))


def _changed(entry: str) -> int:
    try:
        return Path(entry or ".").stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _read(_installed: Installed) -> Mapping[str, Declaration]:
    importlib.invalidate_caches()
    found: dict[str, Declaration] = {}
    for module in plugin_modules():
        declared = _tried(module)
        if isinstance(declared, str):
            log.warning("plugin %s declares nothing that can be used: %s", module, declared)
        else:
            found = {**declared, **found}
    return dict(sorted(found.items(), key=lambda each: (each[1].vendor == 0, each[1].vendor, each[0])))


def _tried(module: str) -> Mapping[str, Declaration] | str:
    """Returns the declarations, or why there are none."""
    try:
        return declared_by(module)
    except (OSError, ValueError) as error:
        return str(error)


def _folders(module: str) -> list[Path]:
    """Returns the folders of a package; only its top package is looked up, since a lookup below imports that one."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return []
    return [Path(folder, *rest) for folder in (spec and spec.submodule_search_locations) or ()]
