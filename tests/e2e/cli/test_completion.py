"""Completion in the shell: scripts, jobs, images, subcommands."""

from pathlib import Path

import pytest

from gcr.runtime import runtime_dir

from .conftest import Gcr
from .fake_daemon import FakeDaemon


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(gcr: Gcr, shell: str) -> None:
    script = gcr("completion", shell).out
    assert "_GCR_COMPLETE" in script
    assert gcr("completion", shell, "--json").json["script"] + "\n" == script


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gcr checkpoint ", "llm"),
        ("gcr checkpoint llm l", ""),
        ("gcr ps l", "llm"),
        ("gcr --json restore l", "llm"),
        ("gcr wait l", "llm"),
        ("gcr inspect w", "warm"),
        ("gcr restore --image ", "cold warm"),
        ("gcr rm warm ", "cold"),
    ],
)
def test_completion_knows_jobs_and_images(gcr: Gcr, daemon: FakeDaemon, home: Path, words: str, found: str) -> None:
    images = home / "store/images"
    images.mkdir(parents=True)
    for name in ("warm", "cold"):
        (images / f"{name}.json").touch()
    asked = {"_GCR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = gcr(**asked, GCR_STORE=str(home / "store"))
    assert (done.code, done.err) == (0, "")
    assert [line.split(",")[1] for line in done.out.split()] == found.split()


def test_completion_starts_no_daemon_and_says_nothing(gcr: Gcr) -> None:
    done = gcr(_GCR_COMPLETE="bash_complete", COMP_WORDS="gcr checkpoint ", COMP_CWORD="2", GCR_STORE="s3://no")
    assert (done.code, done.out.strip(), done.err) == (0, "", "")
    assert not (runtime_dir() / "gcrd.sock").exists()


def test_completion_knows_the_subcommands(gcr: Gcr) -> None:
    done = gcr(_GCR_COMPLETE="bash_complete", COMP_WORDS="gcr che", COMP_CWORD="1")
    assert "checkpoint" in done.out
