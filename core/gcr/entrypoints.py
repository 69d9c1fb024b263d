"""Entry points of the installed distributions, read from their files.

The standard library's `importlib.metadata` finds the same and costs 20 ms of each process that loads a plugin. It is
asked only where `sys.path` names an archive.
"""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

GROUP = "gcr"
"""Of plugins."""
ENVIRONMENT = "GCR_PLUGINS"
"""Modules to load as plugins besides the entry points, comma-separated: for running from a source tree."""
_SUFFIXES = (".dist-info", ".egg-info")


class EntryPoint(NamedTuple):
    """`value` is `module` or `module:attribute`; the distribution's name and version are empty if unknown."""

    name: str
    value: str
    distribution: str
    version: str

    @property
    def module(self) -> str:
        return self.value.partition("[")[0].partition(":")[0].strip()

    def load(self) -> object:
        """The module or its attribute. Raises what importing it raises, AttributeError where it lacks the attribute."""
        attribute = self.value.partition("[")[0].partition(":")[2]
        found: object = import_module(self.module)
        for name in filter(None, attribute.strip().split(".")):
            found = getattr(found, name)
        return found


def entry_points(group: str) -> list[EntryPoint]:
    """Entry points of a group. A distribution that is on `sys.path` twice counts once, where it comes first."""
    folders = [Path(entry or ".") for entry in sys.path]
    if any(folder.is_file() for folder in folders):
        return _asked(group)
    seen: set[str] = set()
    return [entry for folder in folders for info in _fresh(folder, seen) for entry in _read(info, group)]


def plugin_modules() -> list[str]:
    """Returns the modules of all plugins, those of the environment last, each once. Imports none."""
    entries = sorted(entry_points(GROUP), key=lambda entry: (entry.name, entry.value))
    return list(dict.fromkeys([*(entry.module for entry in entries), *modules_in_environment()]))


def modules_in_environment() -> list[str]:
    words = os.environ.get(ENVIRONMENT, "").split(",")
    return [word for each in words if (word := each.strip())]


def _fresh(folder: Path, seen: set[str]) -> Iterator[Path]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name.endswith(_SUFFIXES))
    except OSError:
        return
    for name in names:
        distribution = name.rpartition(".")[0].partition("-")[0].lower().replace("_", "-").replace(".", "-")
        if distribution not in seen:
            seen.add(distribution)
            yield folder / name


def _read(info: Path, group: str) -> list[EntryPoint]:
    try:
        text = (info / "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return []
    found = _section(text, group) if f"[{group}]" in text else []
    name, version = _identity(info) if found else ("", "")
    return [EntryPoint(key, value, name, version) for key, value in found]


def _section(text: str, group: str) -> list[tuple[str, str]]:
    lines = [line for raw in text.splitlines() if (line := raw.strip()) and line[0] not in "#;"]
    section, found = "", []
    for line in lines:
        if line.startswith("["):
            section = line.strip("[]").strip()
        elif section == group and "=" in line:
            key, _, value = line.partition("=")
            found.append((key.strip(), value.strip()))
    return found


def _identity(info: Path) -> tuple[str, str]:
    """Name and version, as METADATA has them, else as the folder's name does."""
    stem = info.name.rpartition(".")[0].split("-")
    facts = {"Name": stem[0], "Version": stem[1] if len(stem) > 1 else ""}
    for file in ("METADATA", "PKG-INFO"):
        if (info / file).is_file():
            head = (info / file).read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
            facts |= {key: value.strip() for line in head.splitlines() for key, _, value in [line.partition(":")]}
            break
    return facts["Name"], facts["Version"]


def _asked(group: str) -> list[EntryPoint]:
    from importlib import metadata

    found = metadata.entry_points(group=group)
    facts = [(entry.dist.name, entry.dist.version) if entry.dist else ("", "") for entry in found]
    return [EntryPoint(entry.name, entry.value, *fact) for entry, fact in zip(found, facts, strict=True)]
