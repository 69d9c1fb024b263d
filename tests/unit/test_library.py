"""The library's exports, and its refusals before any daemon is asked."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from reported import job_info, process

import gcr
from gcr import errors, imageerrors, losterrors
from gcr.api.listings import ImageInfo, JobInfo
from gcr.errors import GcrError, UsageError
from gcr.library.arguments import check_stream, checked_environment, checked_folder, words_of


@pytest.mark.parametrize("module", [errors, losterrors, imageerrors])
def test_every_error_is_exported(module: ModuleType) -> None:
    kinds = {name for name, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, GcrError)}
    assert kinds <= set(gcr.__all__)
    assert all(getattr(gcr, name) is getattr(module, name) for name in kinds)


def test_an_error_of_an_image_is_rebuilt_in_a_process_that_has_imported_no_image() -> None:
    code = "from gcr.protocol.jsonbody import *; print(error_from_json({'code': 'wrong_key', 'exit': 3}).__class__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{imageerrors.WrongKey}\n", done.stderr


def test_what_a_type_checker_sees_is_what_is_there() -> None:
    tree = ast.parse(Path(str(gcr.__file__)).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imported for alias in node.names if node.module != "typing"}
    assert set(seen) == set(gcr.__all__)
    for name, module in seen.items():
        assert getattr(gcr, name) is getattr(__import__(str(module), fromlist=[name]), name)
    with pytest.raises(AttributeError):
        gcr.nothing  # noqa: B018


@pytest.mark.parametrize("program", ["python x.py", b"true", Path("/bin/true"), [], [""], 5, None, [5], ["a\0b"]])
def test_a_program_is_a_list_of_words(program: object) -> None:
    with pytest.raises(UsageError):
        gcr.run(program)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Upper"},
        {"name": 5},
        {"backend": "n o"},
        {"simulate": "--name"},
        {"env": {"A=B": "c"}},
        {"env": {"A": 1}},
        {"env": ["A"]},
        {"cwd": "/nowhere/to/be/found"},
        {"stdout": "file"},
        {"stderr": -9},
        {"stdout": subprocess.STDOUT},
        {"stdout": True},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        gcr.run(["true"], **wrong)  # type: ignore[arg-type]


def test_what_makes_sense_is_taken(tmp_path: Path) -> None:
    assert words_of(("ls", Path("/"), b"-l")) == ["ls", "/", "-l"]  # type: ignore[list-item]
    assert checked_environment({"A": "b"}) == {"A": "b"}
    assert checked_folder(tmp_path) == str(tmp_path)
    check_stream("stderr", subprocess.STDOUT, is_error=True)


@pytest.mark.parametrize("target", [True, None, 1.5])
def test_a_target_is_a_name_or_a_pid(target: object) -> None:
    with pytest.raises(UsageError):
        gcr.attach(target)  # type: ignore[arg-type]


def test_a_job_says_which_it_is() -> None:
    assert repr(gcr.Job("llm", 4711)) == "Job('llm', pid=4711)"


def test_reports_take_what_a_newer_daemon_adds() -> None:
    known = job_info(processes=(process(bytes=5), process(bytes=6))).to_json()
    more = {**known, "processes": [{**row, "new": 1} for row in known["processes"]], "x": 1}
    assert JobInfo.from_json(more).bytes == 11
    assert JobInfo.from_json(more).to_json() == known
    assert ImageInfo.from_json({"image": "warm", "damaged": "gone"}).job is None
