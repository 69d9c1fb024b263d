"""Nodes of a cluster: plug-ins are found, words cross with their errors, and nodes that differ are named."""

import json
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from gcr import schemas
from gcr.cli.main import command_name, main
from gcr.cluster import plugins
from gcr.cluster.plugins import NodeFacts, Word, cluster, differences, refuse_different
from gcr.clustererrors import NodesDiffer, NodeUnreachable
from gcr.errors import LibraryMissing, UsageError, WrongState


def facts(version: str = "1.0", user: int = 0, devices: tuple[str, ...] = ("8 x NVIDIA H200",)) -> NodeFacts:
    return NodeFacts(host="h", boot_id="b", user=user, version=version, daemon_pid=7, jobs=(), devices=devices)


def test_nodes_of_one_version_and_user_work_together() -> None:
    refuse_different({"one": facts(), "two": facts()})
    refuse_different({})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (facts(version="1.1"), "gcr 1.0: one, three; gcr 1.1: two"),
        (facts(user=9), "user 0: one, three; user 9: two"),
    ],
)
def test_nodes_that_differ_are_named(other: NodeFacts, said: str) -> None:
    with pytest.raises(NodesDiffer, match=said):
        refuse_different({"one": facts(), "two": other, "three": facts()})


def test_other_devices_and_drivers_are_told_and_not_refused() -> None:
    same, other = facts(), facts(devices=("4 x NVIDIA H100",))
    assert differences({"one": same, "two": same}) == differences({}) == []
    refuse_different({"one": same, "two": other})
    assert differences({"one": same, "two": other, "three": same}) == [
        "4 x NVIDIA H100: two; 8 x NVIDIA H200: one, three"
    ]
    newer = replace(same, drivers=("driver 610.1",))
    assert differences({"one": same, "two": newer}) == ["driver 610.1: two; no driver: one"]


def test_an_error_crosses_with_its_type() -> None:
    word = Word.of_error(WrongState("job llm runs", state="running", hint="gcr ps"))
    error = Word(word.kind, dict(word.body)).error()
    assert isinstance(error, WrongState)
    assert (error.message, error.state, error.hint) == ("job llm runs", "running", "gcr ps")
    assert word.is_last
    assert not Word(plugins.EVENT, {}).is_last
    assert Word(plugins.ANSWER, {}).error() is None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    found: list[EntryPoint] = []

    def entry_points(group: str) -> Any:
        return [each for each in found if each.group == group]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    return found


def test_the_one_plug_in_is_taken(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("here", "builtins:str", plugins.GROUP))
    assert cluster("10.0.0.1:6379") == "10.0.0.1:6379"  # type: ignore[comparison-overlap]


def test_without_a_plug_in_or_with_several_the_message_says_so(installed: list[EntryPoint]) -> None:
    with pytest.raises(LibraryMissing, match="no plug-in"):
        cluster()
    installed += [EntryPoint(name, "builtins:str", plugins.GROUP) for name in ("ray", "other")]
    with pytest.raises(UsageError, match="ray, other"):
        cluster()


def test_the_flag_is_another_way_to_say_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cluster", "status", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: gcr cluster status")
    assert command_name(["--json", "--cluster", "run", "--name", "llm"]) == "cluster run"
    assert command_name(["run", "--", "program", "--cluster"]) == "run"


class Silent(SimpleNamespace):
    """A node that answers nothing."""

    name, address = "b", "10.0.0.2"

    def facts(self, _patience: float) -> NodeFacts:
        raise NodeUnreachable("node b has no actor of gcr")


@pytest.mark.parametrize(
    "words", [["status"], ["up", "--no-exchange"], ["down"], ["run", "--name", "train", "--", "true"]]
)
def test_the_objects_of_the_commands_are_as_their_schemas_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    answers = {"name": "a", "address": "10.0.0.1", "facts": lambda _patience: facts(), "start": lambda *_: "/logs/a"}
    node = SimpleNamespace(**answers)
    nodes = [node, Silent()] if words == ["status"] else [node]
    seen = SimpleNamespace(nodes=lambda: nodes, up=lambda: nodes, down=lambda: 1)
    monkeypatch.setattr(plugins, "cluster", lambda _address: seen)
    assert main(["--json", "cluster", *words]) == 0
    told = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schemas.load(told["command"])).validate(told)
    assert told["command"] == f"cluster {words[0]}"
