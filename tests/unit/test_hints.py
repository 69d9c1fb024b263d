"""Hints lead somewhere: each command that one names exists, with these options."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gcr import processes
from gcr.cli.main import SUBCOMMANDS, gcr
from gcr.daemon.jobs import Jobs
from gcr.errors import NoSuchJob
from gcr.image.store.store import Store
from gcr.job import runs
from gcr.job.runs import End, Run

ROOT = Path(__file__).parents[2]
PLACES = [path for folder in ("core", "backends") for path in (ROOT / folder).rglob("*.py")]
COMMAND = re.compile(r"\bgcr ((?:-?[a-z]+-)?[a-z]+)((?:(?!gcr )[^,;:?])*)")
NO_COMMANDS = {"as", "computes", "keeps", "may", "that", "wants", "with"}  # what a sentence goes on with
GONE = 4194304 + 7  # no pid


def text_of(node: ast.expr) -> str:
    """A string, with a word where it has a value; else nothing."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def hints() -> Iterator[tuple[str, str]]:
    """Yields the hints of files that have the word."""
    texts = [(path, path.read_text()) for path in PLACES]
    for path, text in texts:
        for node in ast.walk(ast.parse(text if "hint" in text.lower() else "")):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                yield path.name, text_of(node.value)
            if isinstance(node, ast.Assign) and any("hint" in ast.unparse(each).lower() for each in node.targets):
                yield path.name, text_of(node.value)


def test_each_command_that_a_hint_names_exists_with_its_options() -> None:
    """One test for all: to find them takes as long as the collection of a hundred tests, in each worker."""
    named = sorted({(where, *found) for where, hint in hints() for found in COMMAND.findall(hint)})
    assert len(named) > 30
    assert [(where, name, rest) for where, name, rest in named if not exists(name, rest.split())] == []


def exists(name: str, words: list[str]) -> bool:
    """Tells whether there is such a command, with the subcommand and the options among these words."""
    if name in NO_COMMANDS:
        return True
    with click.Context(gcr) as context:
        found = gcr.get_command(context, name) if name in SUBCOMMANDS else None
        if isinstance(found, click.Group) and words:
            found = found.get_command(context, words[0])
        known = {option for each in found.params for option in each.opts} if found else set()
    return found is not None and known.issuperset(word.split("=")[0] for word in words if word.startswith("--"))


def test_a_job_that_has_ended_is_told_of_as_such_and_not_by_a_list_that_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("GCR_SOCKET", str(tmp_path / "gcrd.sock"))
    facts = {"boot": processes.boot_id(), "space": processes.pid_space(), "command": ("true",), "supervisor": GONE}
    ended = Run(
        job="llm",
        id="a1",
        socket=os.environ["GCR_SOCKET"],
        supervisor_start=processes.start_time(GONE) or 0,
        pid=GONE,
        start=0,
        began=1.0,
        end=End.of_code(3),
        **facts,  # type: ignore[arg-type]
    )
    runs.write(ended)
    jobs = Jobs(began=0.0)
    with pytest.raises(NoSuchJob, match=r"llm has ended .* ago: exit code 3") as told:
        jobs.find("llm")
    assert (told.value.hint, told.value.state) == ("gcr ps --all", "exited")
    with pytest.raises(NoSuchJob, match="no job 'llm'"):
        jobs.find("llm", may_see=lambda owner: owner != os.getuid())
    with pytest.raises(NoSuchJob, match="no job 'other'"):
        jobs.find("other")


def test_a_hint_about_an_image_names_its_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "a store")
    with pytest.raises(Exception, match="no image 'warm'") as told:
        store.images.manifest("warm")
    assert told.value.hint == f"gcr images --store '{store.path}'"  # type: ignore[attr-defined]
