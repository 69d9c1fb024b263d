"""Folders of core import those below them, and no modules form a circle. Each rule also meets a tree that breaks it."""

import ast
import runpy
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from trees import nodes

REPOSITORY = Path(__file__).parents[2]
CORE = REPOSITORY / "core/gcr"

ROOT = "."  # modules that lie in no folder: interfaces of backends, errors, settings
DOORS = {"__init__", "__main__", "simulated"}  # they start what lies above them
BASE = {ROOT, "protocol"}
STORES = {"image.chunks", "image.crypto", "image.disk", "image.files", "image.pack", "image.store"}
MAY_IMPORT: Mapping[str, set[str]] = {
    ROOT: {"hashing"},
    "protocol": {ROOT},
    "hashing": BASE,
    "criu": {ROOT},
    "criu_helper": BASE | {"criu"},
    "kernels": {ROOT},
    "vmm": {ROOT, "hashing"},
    "standstill": set(),
    "api": {ROOT, "standstill"},
    "memory": BASE | {"hashing"},
    "image": set(),
    "image.chunks": {ROOT, "hashing", "memory"},
    "image.disk": {ROOT, "memory"},
    "image.crypto": {ROOT, "image.chunks", "image.disk"},
    "image.pack": {ROOT, "image.chunks", "image.crypto", "image.disk"},
    "image.files": {ROOT, "hashing", "memory", "image.chunks", "image.crypto", "image.pack"},
    "image.store": {ROOT, "image.crypto", "image.disk", "image.files", "image.pack"},
    "image.read": {ROOT, "hashing", "image.chunks", "image.disk", "image.files", "image.pack", "image.store"},
    "image.write": {ROOT, "hashing", "image.read", "image.chunks", "image.disk", "image.files", "image.pack"}
    | {"image.store"},
    "image.remote": {ROOT, "image.read", *STORES},
    "swarm": set(),
    "image.exchange": {ROOT, "swarm", "image.remote", *STORES},
    "peers": BASE | {"memory", "image.files"},
    "job": BASE | {"peers"},
    "rendezvous": BASE | {"api", "job"},
    "engine": BASE | {"api", "hashing", "image.chunks", "job", "memory", "peers", "standstill"},
    "daemon": BASE
    | {"api", "engine", "image.chunks", "image.files", "image.store", "job", "library", "memory", "peers"}
    | {"rendezvous", "standstill"},
    "supervisor": BASE | {"criu", "job", "memory", "rendezvous"},
    "worker": BASE | {"hashing", "memory"},
    "control_helper": BASE,
    "image_helper": BASE
    | {"criu", "hashing", "memory", "image.chunks", "image.crypto", "image.disk", "image.files", "image.store"}
    | {"image.read", "image.write"},
    "checkpoints": BASE
    | {"api", "hashing", "memory", "rendezvous", "image.chunks", "image.crypto", "image.disk", "image.files"}
    | {"image.pack", "image.read", "image.remote", "image.store", "image.write"},
    "save_helper": BASE | {"checkpoints", "image.crypto", "image.disk", "image.store"},
    "torch": {ROOT},
    "library": BASE | {"api", "image.crypto", "image.store", "job", "rendezvous"},
    "serve": BASE | {"api", "job", "library", "rendezvous"},
    "cluster": BASE | {"api", "library", "rendezvous", "standstill"},
    "migration": {ROOT, "api", "cluster", "job", "rendezvous"},
    "migration_helper": BASE
    | {"api", "cluster", "criu", "job", "library", "rendezvous"}
    | {"image.crypto", "image.exchange", "image.files", "image.remote", "image.store"},
    "demo": {ROOT, "supervisor"},
    "cli": BASE
    | {
        "api",
        "checkpoints",
        "cluster",
        "criu",
        "demo",
        "job",
        "kernels",
        "library",
        "memory",
        "migration",
        "rendezvous",
    }
    | {"serve"}
    | {"image.crypto", "image.disk", "image.exchange", "image.files", "image.pack", "image.read", "image.remote"}
    | {"image.store", "supervisor"},
    "testing": BASE | {"cli", "hashing", "rendezvous"},
}


def modules(core: Path) -> dict[str, Path]:
    """Every module of core by its dotted name without `gcr.`; a folder's own is the folder's name."""
    paths = {path.relative_to(core).with_suffix(""): path for path in core.rglob("*.py")}
    named = {".".join(name.parts): path for name, path in paths.items()}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules of core that a file imports, anywhere in it."""
    named = [alias.name for node in nodes(path, ast.Import) for alias in node.names]
    named += [
        f"{node.module}.{alias.name}" for node in nodes(path, ast.ImportFrom) for alias in node.names if node.module
    ]
    for name in named:
        inner = name.removeprefix("gcr.")
        if name.startswith("gcr.") and (found := next((n for n in (inner, parent(inner)) if n in known), None)):
            yield found


def parent(name: str) -> str:
    return name.rpartition(".")[0]


def graph(core: Path) -> dict[str, set[str]]:
    known = modules(core)
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def folder(core: Path, name: str) -> str:
    """Returns the folder that a module lies in; of folders within folders only those of an image count."""
    parts = name.split(".")
    own = parts[:2] if parts[0] == "image" else parts[:1]
    return next((".".join(each) for each in (own, own[:1]) if core.joinpath(*each).is_dir()), ROOT)


def arrows_that_are_not_allowed(core: Path) -> list[str]:
    found = []
    for name, targets in graph(core).items():
        if name in DOORS:
            continue
        own = folder(core, name)
        allowed = MAY_IMPORT.get(own, set()) | {own}
        found += [f"{name} -> {target}" for target in sorted(targets) if folder(core, target) not in allowed]
    return found


def circles(core: Path) -> list[str]:
    """The first circle of modules, as the modules on it."""
    try:
        TopologicalSorter(graph(core)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_imports_only_those_below_it():
    assert set(MAY_IMPORT) == {folder(CORE, name) for name in modules(CORE)} - {"schemas"}
    assert arrows_that_are_not_allowed(CORE) == []


def test_the_allowed_arrows_have_no_circle_but_that_of_the_root():
    """`gcr.drain`, an interface of backends, names the chunk hash's types."""
    TopologicalSorter({name: below - {ROOT} for name, below in MAY_IMPORT.items() if name != ROOT}).prepare()


def test_every_allowed_arrow_is_in_use():
    used = {
        (folder(CORE, name), folder(CORE, target))
        for name, targets in graph(CORE).items()
        if name not in DOORS
        for target in targets
    }
    assert [(own, to) for own, below in MAY_IMPORT.items() for to in sorted(below) if (own, to) not in used] == []


def test_the_picture_of_the_imports_is_as_drawn():
    tools = runpy.run_path(str(REPOSITORY / "tools" / "imports.py"))
    shown = (REPOSITORY / "docs" / "pictures" / "imports.svg").read_text()
    assert shown == tools["svg"](tools["rooms"](CORE, False)), "python tools/imports.py docs/pictures/imports.svg"


def test_no_modules_import_each_other_in_a_circle():
    assert circles(CORE) == []


def path(core: Path, folder: str) -> Path:
    return core if folder == ROOT else core.joinpath(*folder.split("."))


@pytest.mark.parametrize("own", MAY_IMPORT)
def test_each_other_arrow_is_noticed(own, tmp_path):
    for name in MAY_IMPORT:
        path(tmp_path, name).mkdir(parents=True, exist_ok=True)
        (path(tmp_path, name) / "a.py").write_text("")
    forbidden = sorted(set(MAY_IMPORT) - MAY_IMPORT[own] - {own})
    lines = [f"    from {'gcr' if to == ROOT else f'gcr.{to}'} import a" for to in forbidden]
    (path(tmp_path, own) / "a.py").write_text("\n".join(["def later():", *lines]))
    noticed = arrows_that_are_not_allowed(tmp_path)
    assert len(noticed) == len(forbidden) > 0, noticed


def test_a_circle_is_noticed(tmp_path):
    (tmp_path / "a.py").write_text("from gcr import b")
    (tmp_path / "b.py").write_text("def later():\n    from gcr.c import C")
    (tmp_path / "c.py").write_text("import gcr.a")
    assert set(circles(tmp_path)) == {"a", "b", "c"}
