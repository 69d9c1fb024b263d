"""Nodes of source files. A file is parsed once for all rules that a worker of pytest applies."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


def nodes(path: Path, kind: type[Node]) -> Sequence[Node]:
    """Returns the nodes of this kind anywhere in a file, in the order of ast.walk."""
    found: Sequence[Node] = by_kind(path.read_text()).get(kind, ())
    return found


@cache
def by_kind(text: str) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(ast.parse(text)):
        found.setdefault(type(node), []).append(node)
    return found
