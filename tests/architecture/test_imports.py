"""Rules about the whole tree. Each is a function of a tree, applied to ours and, to see it fail, to a small bad one."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trees import nodes

ROOT = Path(__file__).parents[2]
VENDOR = {
    "cuda",
    "pynvml",
    "torch",
    "cupy",
    "numba",
    "triton",
    "hip",
    "amdsmi",
    "rocm",
    "acl",
    "torch_npu",
    "mindspore",
}
BACKENDS = {"gcr_nvidia", "gcr_amd", "gcr_ascend"}
INTEGRATIONS = {"gcr_llmd", "gcr_ray", "gcr_sglang", "gcr_torch", "gcr_vllm"}
PUBLIC_NAMES = {"gcr_torch": "gcr/torch"}  # the folder of core that has an integration's public names, and loads it
OPEN_TO_INTEGRATIONS = (
    *("gcr.checkpoints", "gcr.cluster", "gcr.clustererrors", "gcr.errors", "gcr.imageerrors"),
    *("gcr.library.ownjob", "gcr.listening", "gcr.names", "gcr.version"),
)
DEMO_DEVICES = "gcr/demo/devices"
LONGEST_FUNCTION = 60
PARTS_OF_A_DRAIN = {"CopiesWithin", "HasLanes", "PreparesHash", "Paces"}
LONGEST_FILE = 400  # lines, blank ones and comments included
BESIDE = ("tests", "benchmarks", "examples", "tools")  # of which the files are no longer either
MOST_METHODS, MOST_FIELDS = 25, 12  # of a class

# Classes and files that are over these limits. The list only shrinks.
WIDE = {
    "gcr/api/listings.py JobInfo": "the fields of a row of ps (docs/contract.md)",
    "gcr/api/reports.py CheckpointReport": "the fields of a report (docs/contract.md)",
    "gcr/config.py Config": "the settings (docs/configuration.md)",
    "gcr/job/runs.py Run": "the fields of a job's record on disk",
    "gcr/protocol/agentwire.py StatusRecord": "the fields of a wire record (wire.h)",
}

# Modules of core that open files for writing, and what they write. Images are written by gcr/image/ alone.
WRITERS = {
    "gcr/criu/aside.py": "memory of processes that CRIU has made",
    "gcr/criu/known.py": "that CRIU works here",
    "gcr/criu/pagemap.py": "a pagemap of CRIU's without zeros",
    "gcr/criu/saving.py": "which pid the kernel gave last",
    "gcr/criu_helper/__main__.py": "how early the kernel ends it when memory is short",
    "gcr/daemon/locked.py": "of which processes connections CRIU may have locked",
    "gcr/job/journal.py": "decision records",
    "gcr/job/migrations.py": "records of migrations",
    "gcr/migration_helper/offering.py": "the certificate of a migration, while it is read",
    "gcr/rendezvous/folder.py": "which daemon a folder belongs to",
    "gcr/serve/seat.py": "locks of models",
    "gcr/daemon/missed.py": "what a supervisor that was away has missed",
    "gcr/rendezvous/presence.py": "which processes are under a daemon",
    "gcr/rendezvous/away.py": "marks that keep agents away from a daemon",
    "gcr/daemon/seat.py": "the daemon's locks",
    "gcr/rendezvous/launch.py": "the daemon's log",
    "gcr/daemon/fleet.py": "logs of workers and of the control helper",
    "gcr/supervisor/process.py": "the file of --report",
    "gcr/supervisor/diary.py": "the log of a detached job",
    "gcr/job/log.py": "the older part of a detached job's log",
    "gcr/job/runs.py": "records of jobs",
    "gcr/job/contained.py": "the record of a job in a container, that goes into an image",
    "gcr/job/stopped.py": "the record of a job that goes into an image",
    "gcr/criu/tree.py": "the note about a process tree that goes into an image",
    "gcr/faults.py": "which injected faults have struck",
    "gcr/testing/": "the contract suite opens devices that are not device memory",
    "gcr/image/": "images",
    "gcr/cli/commands/inspect.py": "a page for a browser",
    "gcr/background.py": "which program runs in the background",
    "gcr/cluster/exchanges.py": "keys of a cluster's exchanges",
    "gcr/cli/asking.py": "/dev/null, in the place of its output",
}


def sources(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts)


def ours(root: Path) -> list[Path]:
    return [path for folder in ("core", "backends", "integrations") for path in sources(root / folder)]


def imported(path: Path) -> set[str]:
    """Modules a file imports, anywhere in it; those loaded by name as well, where the name is a literal."""
    found = {alias.name for node in nodes(path, ast.Import) for alias in node.names}
    for node in nodes(path, ast.ImportFrom):
        if node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for call in nodes(path, ast.Call):
        match call.args:
            case [ast.Constant(value=str(name)), *_] if called(call) in ("import_module", "__import__"):
                found.add(name)
    return found


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def core_that_imports_a_vendor_or_a_backend(root: Path) -> list[str]:
    """The demo's program is no part of gcr: it is the user's, run as a target in a process of its own."""
    paths = (path for path in sources(root / "core") if path.parent != root / "core" / DEMO_DEVICES)
    return [f"{path}: {bad}" for path in paths for bad in sorted(tops(path) & (VENDOR | BACKENDS))]


def backends_that_import_each_other(root: Path) -> list[str]:
    found = []
    for name in BACKENDS:
        for path in sources(root / "backends" / name.removeprefix("gcr_")):
            found += [f"{path}: {bad}" for bad in sorted(tops(path) & (BACKENDS - {name}))]
    return found


def core_that_imports_an_integration(root: Path) -> list[str]:
    found = [(path.relative_to(root / "core"), name) for path in sources(root / "core") for name in sorted(tops(path))]
    return [
        f"{path}: {name}"
        for path, name in found
        if name in INTEGRATIONS and path.parent.as_posix() != PUBLIC_NAMES.get(name)
    ]


def integrations_that_import_the_inside_of_core(root: Path) -> list[str]:
    """An integration is written against `gcr.checkpoints`, or the library, as one of another project could be."""
    return [
        f"{path}: {name}"
        for path in sources(root / "integrations")
        for name in sorted(imported(path))
        if name.partition(".")[0] in {"gcr"} | BACKENDS
        if name != "gcr" and not any(name == each or name.startswith(f"{each}.") for each in OPEN_TO_INTEGRATIONS)
    ]


def core_that_guesses_what_a_backend_can(root: Path) -> list[str]:
    """An optional part of a backend is a protocol with a name (gcr.backend, gcr.drain), which its author can read."""
    asking = [path for path in sources(root / "core") if path.name != "arguments.py"]
    return sorted({str(path) for path in asking for call in nodes(path, ast.Call) if is_a_guess(path, call)})


def is_a_guess(path: Path, call: ast.Call) -> bool:
    """A drain is asked by gcr.worker.guarded: isinstance does not see through its guard from Python 3.12 on."""
    asked = {node.id for argument in call.args[1:] for node in ast.walk(argument) if isinstance(node, ast.Name)}
    past = called(call) == "isinstance" and asked & PARTS_OF_A_DRAIN
    return called(call) == "hasattr" or bool(past and path.name != "guarded.py")


def daemon_or_supervisor_that_loads_plugins(root: Path) -> list[str]:
    """Plugins are where vendor libraries come from; no import leads from these two processes there."""
    start = [path for part in ("daemon", "supervisor") for path in sources(root / "core/gcr" / part)]
    return [f"{path}: gcr.plugins" for path in closure(root / "core", start) if "gcr.plugins" in imported(path)]


def closure(base: Path, start: list[Path]) -> set[Path]:
    """`start` and every module of ours that it imports, directly or not."""
    seen: set[Path] = set()
    todo = list(start)
    while todo:
        path = todo.pop()
        if path not in seen:
            seen.add(path)
            todo += [file for name in imported(path) for file in files_of(base, name)]
    return seen


def files_of(base: Path, module: str) -> list[Path]:
    stem = base.joinpath(*module.split("."))
    return [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]


def core_that_writes_files(root: Path) -> list[str]:
    found = []
    for path in sources(root / "core"):
        name = path.relative_to(root / "core").as_posix()
        if not any(name.startswith(writer) for writer in WRITERS):
            found += [f"{name}:{line}" for line in writes(path)]
    return found


def writes(path: Path) -> Iterator[int]:
    """Lines that open a file for writing, by any of the usual ways."""
    for call in nodes(path, ast.Call):
        if called(call) in ("write_text", "write_bytes") or opens_for_writing(call):
            yield call.lineno


def opens_for_writing(node: ast.Call) -> bool:
    """open(path, mode) and os.fdopen(fd, mode), os.open(path, flags), Path.open(mode)."""
    if called(node) not in ("open", "fdopen"):
        return False
    method_of = getattr(getattr(node.func, "value", None), "id", None)
    place = 1 if isinstance(node.func, ast.Name) or method_of in ("os", "io") else 0
    given = [*node.args[place : place + 1], *(word.value for word in node.keywords if word.arg in ("mode", "flags"))]
    parts = [part for argument in given for part in ast.walk(argument)]
    modes = "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    flags = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return bool(set(modes) & set("wxa+") or flags & {"O_WRONLY", "O_RDWR", "O_CREAT"})


def core_that_globs(root: Path) -> list[str]:
    """Returns the calls of glob: from Python 3.12 on it hides a directory that cannot be read; gcr.listing does not."""
    paths = ours(root)
    return [
        f"{path}:{node.lineno}"
        for path in paths
        if path.relative_to(root).as_posix() not in ("core/gcr/cli/reference.py", "core/gcr/testing/machine.py")
        for node in nodes(path, ast.Call)
        if called(node) in ("glob", "rglob", "iglob")
    ]


def functions_that_are_too_long(root: Path) -> list[str]:
    found = []
    for path in ours(root):
        for node in nodes(path, ast.FunctionDef):
            if node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION:
                found.append(f"{path}:{node.lineno} {node.name}")
    return found


def files_that_are_too_long(root: Path) -> list[str]:
    return [name for name in too_long(root) if name not in WIDE]


def too_long(root: Path) -> list[str]:
    paths = [*ours(root), *(path for folder in BESIDE for path in sources(root / folder))]
    return [name_of(path, root) for path in paths if len(path.read_text().splitlines()) > LONGEST_FILE]


def classes_that_are_too_wide(root: Path) -> list[str]:
    return [name for name in too_wide(root) if name not in WIDE]


def too_wide(root: Path) -> list[str]:
    return [
        f"{name_of(path, root)} {node.name}"
        for path in ours(root)
        for node in nodes(path, ast.ClassDef)
        if len(methods_of(node)) > MOST_METHODS or len(fields_of(node)) > MOST_FIELDS
    ]


def name_of(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix().removeprefix("core/")


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def fields_of(node: ast.ClassDef) -> set[str]:
    """Names that the class annotates and names that its methods assign to `self`."""
    annotated = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    assigned = [each for method in methods_of(node) for each in ast.walk(method) if is_field_of_self(each)]
    return {each.id for each in annotated if isinstance(each, ast.Name)} | {each.attr for each in assigned}


def is_field_of_self(node: ast.AST) -> bool:
    stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return stored and isinstance(node.value, ast.Name) and node.value.id == "self"


MANY_METHODS = "class C:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(MOST_METHODS + 1))
MANY_FIELDS = "class C:\n" + "".join(f"    f{n}: int\n" for n in range(MOST_FIELDS + 1))
MANY_SET = "class C:\n    def __init__(self):\n" + "".join(f"        self.f{n} = 0\n" for n in range(MOST_FIELDS + 1))
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION
RULES: dict[Callable[[Path], list[str]], list[tuple[str, str]]] = {
    core_that_imports_a_vendor_or_a_backend: [
        ("core/gcr/a.py", "import cuda.bindings.driver"),
        ("core/gcr/engine/a.py", "def f():\n    from gcr_nvidia import drain"),
        ("core/gcr/a.py", "import importlib\nimportlib.import_module('pynvml')"),
        ("core/gcr/testing/a.py", "if True:\n    from cuda import core"),
    ],
    backends_that_import_each_other: [
        ("backends/amd/gcr_amd/a.py", "from gcr_nvidia.uuids import raw"),
        ("backends/nvidia/gcr_nvidia/a.py", "def f():\n    import gcr_ascend"),
    ],
    core_that_imports_an_integration: [
        ("core/gcr/cli/a.py", "def f():\n    from gcr_torch import dcp"),
        ("core/gcr/a.py", "import importlib\nimportlib.import_module('gcr_torch')"),
    ],
    integrations_that_import_the_inside_of_core: [
        ("integrations/torch/gcr_torch/a.py", "from gcr.image.store.store import Store"),
        ("integrations/torch/gcr_torch/a.py", "def f():\n    import gcr_nvidia"),
    ],
    core_that_guesses_what_a_backend_can: [
        ("core/gcr/worker/a.py", "def f(drain):\n    return hasattr(drain, 'move')"),
        ("core/gcr/worker/a.py", "def f(drain):\n    return isinstance(drain, CopiesWithin)"),
    ],
    daemon_or_supervisor_that_loads_plugins: [
        ("core/gcr/daemon/a.py", "from gcr.plugins import load_plugins"),
        ("core/gcr/supervisor/a.py", "def f():\n    from gcr import plugins"),
    ],
    core_that_writes_files: [
        ("core/gcr/a.py", "from pathlib import Path\nPath('x').write_text('')"),
        ("core/gcr/engine/a.py", "open('x', 'wb')"),
        ("core/gcr/a.py", "from pathlib import Path\nPath('x').open(mode='a')"),
        ("core/gcr/a.py", "import os\nos.open('x', os.O_CREAT | os.O_CLOEXEC)"),
    ],
    core_that_globs: [
        ("core/gcr/a.py", "from pathlib import Path\nPath('x').glob('*')"),
        ("core/gcr/a.py", "import glob\nglob.iglob('*')"),
    ],
    functions_that_are_too_long: [("core/gcr/a.py", LONG_FUNCTION), ("backends/nvidia/gcr_nvidia/a.py", LONG_FUNCTION)],
    files_that_are_too_long: [
        ("core/gcr/a.py", "x = 1\n" * (LONGEST_FILE + 1)),
        ("core/gcr/a.py", "# why\n\n" * (LONGEST_FILE // 2) + "\n"),
        ("tests/unit/test_a.py", "x = 1\n" * (LONGEST_FILE + 1)),
    ],
    classes_that_are_too_wide: [
        ("core/gcr/a.py", MANY_METHODS),
        ("core/gcr/a.py", MANY_FIELDS),
        ("backends/nvidia/gcr_nvidia/a.py", MANY_SET),
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_nothing_in_this_tree_breaks_the_rule(rule):
    assert list(sources(ROOT / "core"))
    assert list(sources(ROOT / "backends"))
    assert rule(ROOT) == []


CASES = [(rule, *case) for rule, cases in RULES.items() for case in cases]


@pytest.mark.parametrize("rule, name, code", CASES)
def test_the_rule_notices(rule, name, code, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("import os\n")
    assert rule(tmp_path) == []
    path.write_text(code)
    assert len(rule(tmp_path)) >= 1


def test_what_is_listed_as_too_wide_or_too_long_still_is():
    assert sorted(WIDE.keys() - {*too_wide(ROOT), *too_long(ROOT)}) == []


def test_a_plugin_loaded_two_imports_away_is_noticed(tmp_path):
    gcr = tmp_path / "core/gcr"
    (gcr / "daemon").mkdir(parents=True)
    (gcr / "daemon/a.py").write_text("from gcr import b")
    (gcr / "b.py").write_text("import gcr.c")
    (gcr / "c.py").write_text("from gcr.plugins import load_plugins")
    assert daemon_or_supervisor_that_loads_plugins(tmp_path) == [f"{gcr}/c.py: gcr.plugins"]


def test_reading_a_file_is_not_writing_one(tmp_path):
    path = tmp_path / "core/gcr/a.py"
    path.parent.mkdir(parents=True)
    path.write_text("import os\nopen('war')\nopen('x', 'rb')\nos.open('x', os.O_RDONLY | os.O_CLOEXEC)\n")
    assert core_that_writes_files(tmp_path) == []


def test_every_writer_in_the_list_is_still_there():
    listed = [name for name in WRITERS if name != "gcr/image/"]
    assert [name for name in listed if not (ROOT / "core" / name).exists()] == []


def modules_of(part: str) -> list[str]:
    base = ROOT / "core"
    names = [
        path.relative_to(base).with_suffix("").as_posix().replace("/", ".") for path in sources(base / "gcr" / part)
    ]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize("part", ["daemon", "supervisor"])
def test_importing_all_of_it_loads_no_vendor_module_and_no_backend(part):
    names = modules_of(part)
    assert names
    code = f"import {', '.join(names)}, sys; print(sorted({{m.partition('.')[0] for m in sys.modules}}))"
    environment = {"PYTHONPATH": f"{ROOT}/core:{ROOT}/backends/nvidia"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(ast.literal_eval(done.stdout))
    assert "gcr" in loaded
    assert loaded & (VENDOR | BACKENDS) == set()
