"""Docstrings open with a verb or a noun and name the thing they speak of (CONTRIBUTING.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import nodes

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("core", "backends", "integrations", "shim")

QUESTION = re.compile(r"(Of|What|Who|Whose|Whether|Where|When|How|Which)\b")
NAMELESS = re.compile(r"\b(nobody|somebody|whoever)\b", re.IGNORECASE)


def documented(path: Path) -> Iterator[tuple[int, str]]:
    for kind in (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef):
        for node in nodes(path, kind):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def unclear(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{line}: {text.splitlines()[0]}"
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for line, text in documented(path)
        if QUESTION.match(text) or NAMELESS.search(text)
    ]


def test_docstrings_are_plain():
    assert unclear(REPOSITORY) == []


@pytest.mark.parametrize(
    "code",
    [
        '"""What a job has."""\n',
        'class Job:\n    """Who asked."""\n',
        'def size():\n    """Of all devices."""\n',
        'async def size():\n    """Whether it is there."""\n',
        'def wait():\n    """Ends a worker.\n\n    Nobody waits for it.\n    """\n',
    ],
)
def test_the_rule_notices(code, tmp_path):
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends/module.py").write_text(code)
    assert len(unclear(tmp_path)) == 1


def test_a_plain_docstring_passes(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core/module.py").write_text('"""Offers of a supervisor."""\ndef size():\n    """Returns bytes."""\n')
    assert unclear(tmp_path) == []
