"""The place of a store: a folder, never a URL."""

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import click
import pytest

import gcr
from gcr.api.requests import RestoreRequest
from gcr.cli.main import gcr as program
from gcr.cli.main import main
from gcr.daemon.images.order import place_of
from gcr.errors import UsageError
from gcr.image.store.location import store_path

URL = "s3://bucket/images"
MORE = {
    "checkpoint": ["llm", "--image", "warm"],
    "restore": ["--image", "warm"],
    "prune": ["--keep-last", "1"],
    "push": ["warm", "file:///nowhere"],
    "pull": ["warm", "file:///nowhere"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, in which a URL taken for a path would leave something."""
    monkeypatch.delenv("GCR_STORE", raising=False)
    monkeypatch.delenv("GCR_CONFIG", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    (tmp_path / "here").mkdir()
    with chdir(tmp_path / "here"):
        yield tmp_path / "here"


def commands_with_a_store() -> list[str]:
    context = click.Context(program)
    found = [(name, program.get_command(context, name)) for name in program.list_commands(context)]
    return [name for name, each in found if each and any("--store" in param.opts for param in each.params)]


def test_every_command_that_takes_a_store_is_tried() -> None:
    assert {"checkpoint", "restore", "images", "inspect", "verify", "rm", "prune", "push", "pull"} <= {
        *commands_with_a_store()
    }


@pytest.mark.parametrize("by", ["flag", "environment", "file"])
@pytest.mark.parametrize("name", commands_with_a_store())
def test_a_url_is_refused_with_what_to_do(
    name: str, by: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--json", name, *MORE.get(name, ["warm"] if name in ("inspect", "verify", "rm") else [])]
    if by == "flag":
        line += ["--store", URL]
    elif by == "environment":
        monkeypatch.setenv("GCR_STORE", URL)
    else:
        (folder.parent / "config.toml").write_text(f'store = "{URL}"')
        monkeypatch.setenv("GCR_CONFIG", str(folder.parent / "config.toml"))
    assert main(line) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "usage"
    assert "URL (s3://" in error["message"]
    assert "gcr push" in error["hint"]
    assert not [*folder.iterdir()]


def test_the_library_refuses_a_url(folder: Path) -> None:
    with pytest.raises(UsageError, match="URL"):
        gcr.Job("llm", None).checkpoint(image="warm", store=URL)
    with pytest.raises(UsageError, match="URL"):
        gcr.Job("llm", None).restore(image="warm", store=URL)
    assert not [*folder.iterdir()]


def test_the_daemon_refuses_a_url_at_its_door() -> None:
    with pytest.raises(UsageError, match="URL"):
        place_of(RestoreRequest(target="llm", image="warm", store=f"/{URL}"), [])


@pytest.mark.parametrize("url, told", [("file:///folder", "by its path"), ("s3://me:secret@bucket", "gcr push")])
def test_what_may_be_a_password_is_not_repeated(url: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        store_path(url)
    assert "secret" not in caught.value.message + caught.value.hint
    assert told in caught.value.hint


def test_a_path_is_taken_as_it_is(folder: Path) -> None:
    assert store_path("s3:/b") == folder / "s3:" / "b"
    assert store_path("~/x") == Path.home() / "x"
