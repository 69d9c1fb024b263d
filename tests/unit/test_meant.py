"""A name that is not there: the one that was meant is named, if one is near; and nothing else is guessed."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gcr.cli.main import SUBCOMMANDS, gcr
from gcr.daemon.jobs import RETURN_S, Job, Jobs
from gcr.engine.node import World
from gcr.errors import NoSuchJob
from gcr.image.store.store import Store
from gcr.imageerrors import NoSuchImage
from gcr.names import meant


def test_a_near_name_is_meant_and_a_far_one_is_not() -> None:
    assert meant("lln", ["llm", "train"]) == "; did you mean llm?"
    assert meant("serve", ["llm", "train"]) == ""
    assert meant("x", []) == ""


def test_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs()
    jobs.began -= RETURN_S + 60
    jobs.add(Job("train", "t", World("nvidia")))
    with pytest.raises(NoSuchJob, match=r"no job 'trian'; did you mean train\?$"):
        jobs.find("trian")
    with pytest.raises(NoSuchJob, match=r"no job 'trian'$"):
        jobs.find("trian", lambda owner: owner != os.getuid())


def test_an_image(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.images.folder.mkdir(parents=True, exist_ok=True)
    (store.images.folder / "warm.json").write_text("{}")
    with pytest.raises(NoSuchImage, match=r"no image 'wram'; did you mean warm\?$"):
        store.images.manifest("wram")
    with pytest.raises(NoSuchImage, match=r"did you mean warm\?$"):
        store.remove(["wram"], dict)


@pytest.mark.parametrize(("wrong", "right"), [("checkpiont", "checkpoint"), ("restor", "restore"), ("log", "logs")])
def test_a_command(wrong: str, right: str) -> None:
    done = CliRunner().invoke(gcr, [wrong])
    assert (done.exit_code, f"did you mean {right}?" in done.output) == (2, True)


def test_an_option_and_a_command_that_is_like_none() -> None:
    assert "--image" in CliRunner().invoke(gcr, ["checkpoint", "llm", "--imgae", "x"]).output
    far = CliRunner().invoke(gcr, ["zzzzzz"]).output
    assert "No such command 'zzzzzz'." in far or "No such command 'zzzzzz'\n" in far
    context = click.Context(gcr)
    assert all(gcr.resolve_command(context, [name])[0] == name for name in SUBCOMMANDS[:2])
