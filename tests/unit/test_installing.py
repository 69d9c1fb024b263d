"""What `make` installs with: uv, told what pip is told, or pip where uv cannot."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import install

LISTED = """\
:env:.constraint='/ours.txt'
:env:.disable-pip-version-check='1'
freeze.all='true'
global.constraint='/theirs.txt'
global.extra-index-url='https://one/simple\\nfile:///two'
global.index-url='https://all/simple'
install.cert='/a.crt'
"""


def test_uv_is_told_what_pip_is_told() -> None:
    options, variables = install.translated(install.settings(LISTED))
    told = sorted(zip(options[::2], options[1::2], strict=True))
    assert told == [
        ("--constraints", "/ours.txt"),  # the environment comes before a file
        ("--default-index", "https://all/simple"),
        ("--index", "file:///two"),
        ("--index", "https://one/simple"),
    ]
    assert variables == {"SSL_CERT_FILE": "/a.crt"}


def pretend(monkeypatch: pytest.MonkeyPatch, listed: str, has_uv: bool) -> list[list[str]]:
    """Has no program run; returns the commands that are asked for. has_uv: it is there, or the index has it."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        asked.append(list(command))
        return subprocess.CompletedProcess(command, 0 if has_uv or install.UV not in command else 1)

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setattr(install, "configuration", lambda: listed)
    return asked


@pytest.mark.parametrize(
    ("listed", "has_uv", "why"),
    [("global.require-hashes='true'\n", True, "require-hashes"), (LISTED, False, "is not to be had")],
)
def test_pip_does_it_where_uv_cannot_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    listed: str,
    has_uv: bool,
    why: str,
) -> None:
    asked = pretend(monkeypatch, listed, has_uv)
    monkeypatch.setattr(install.sys, "executable", str(tmp_path / "python"))
    assert install.main(["--editable", "."]) == 0
    assert why in capsys.readouterr().out
    assert asked[-1] == [*install.PIP, "--no-build-isolation", "--editable", "."]


def test_uv_installs_into_this_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = pretend(monkeypatch, LISTED, has_uv=True)
    assert install.main(["ninja"]) == 0
    assert capsys.readouterr().out == ""
    command = asked[-1]
    assert command[0] == str(Path(sys.executable).with_name("uv"))
    assert command[command.index("--python") + 1] == sys.executable
    assert command[-1] == "ninja"
