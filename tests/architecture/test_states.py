"""A process changes its state by a move of the table alone. The rule also meets modules that break it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import nodes

from gcr.job.process import Process
from gcr.job.states import State
from gcr.processes import ProcessIdentity

CORE = Path(__file__).parents[2] / "core/gcr"

MOVES = {f"job/process.py: {name}" for name in ("_move", "take_back", "settle", "end")}
OTHER_STATES = {
    "errors.py: __init__",
    "daemon/commands/reviving.py: processes",
    "daemon/commands/transaction.py: saying_state",
    "serve/model.py: __init__",
    "serve/model.py: move",
}  # an error says which state it leaves; a model of `gcr serve` has states of its own


def assignments(core: Path) -> Iterator[str]:
    """File and function of every assignment to an attribute `state` or `_state`, and of what could stand for one."""
    for path in sorted(core.rglob("*.py")):
        for function in nodes(path, ast.FunctionDef):
            if any(map(_assigns, ast.walk(function))):
                yield f"{path.relative_to(core)}: {function.name}"


def _assigns(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):  # setattr(process, "_state", …), replace(process, _state=…)
        named = [each.arg for each in node.keywords] + [getattr(each, "value", None) for each in node.args]
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return called in ("setattr", "__setattr__", "replace") and "_state" in named
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in ("state", "_state")


def test_only_the_moves_of_a_process_change_its_state():
    assert set(assignments(CORE)) == MOVES | OTHER_STATES


@pytest.mark.parametrize(
    "line",
    [
        "process.state = State.RUNNING",
        "a, target.process._state = 1, State.RUNNING",
        "setattr(process, '_state', 1)",
        "return replace(process, _state=1)",
    ],
)
def test_another_assignment_is_noticed(line, tmp_path):
    (tmp_path / "a.py").write_text(f"def step(process):\n    {line}\n")
    assert list(assignments(tmp_path)) == ["a.py: step"]


def test_the_state_of_a_process_cannot_be_assigned():
    with pytest.raises(AttributeError):
        Process("llm", ProcessIdentity(7, 1)).state = State.LOST
