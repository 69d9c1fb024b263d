"""The recipes of examples/deploy, checked by the validators of their formats."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gcr.config import Config, environment_name
from gcr.version import __version__

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
JOBS = '{"jobs": [{"job": "one", "state": "%s"}, {"job": "two", "state": "lost"}, {"job": "three", "state": "%s"}]}'


def passes(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def program(name: str) -> str:
    """One that the extra `test` brings; without it, as in a development tree of before, there is nothing to ask."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else pytest.skip(f"{name} is not installed: make test")


def test_the_dockerfile_passes_hadolint_and_names_this_version() -> None:
    passes(program("hadolint"), str(DEPLOY / "Dockerfile"))
    assert f"gpu-cr[nvidia]=={__version__}'" in (DEPLOY / "Dockerfile").read_text()


def test_the_pod_is_one_by_the_schema_of_the_api() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: make test")
    pod = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())
    validate.validate(pod, validate.latest_version(), strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**pod, "spec": {**pod["spec"], "container": []}}, validate.latest_version(), strict=True)


def test_every_variable_of_gcr_in_a_recipe_is_a_setting() -> None:
    (container,) = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["containers"]
    unit = [line for line in (DEPLOY / "gcrd.service").read_text().splitlines() if line.startswith("Environment=")]
    named = {each["name"] for each in container["env"]} | {line.split("=")[1] for line in unit}
    assert len(named) == 2
    assert named <= {environment_name(name) for name in Config.__dataclass_fields__}


def test_systemd_understands_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("there is no systemd-analyze")
    passes(analyze, "--user", "--man=no", "verify", str(DEPLOY / "gcrd.service"))


def test_the_prolog_passes_shellcheck() -> None:
    passes(program("shellcheck"), str(DEPLOY / "slurm-prolog.sh"))


@pytest.mark.parametrize(
    ("script", "busy", "wanted"),
    [
        ("slurm-prolog.sh", "", ["checkpoint one", "checkpoint three"]),
        ("slurm-epilog.sh", "", ["restore one", "restore three"]),
        ("slurm-epilog.sh", "4711 running", []),
    ],
)
def test_the_prolog_suspends_what_runs_and_the_epilog_of_the_last_job_brings_it_back(
    tmp_path: Path, script: str, busy: str, wanted: Sequence[str]
) -> None:
    """Also where gcr refuses one of them. The commands are stand-ins that write down what they are told."""
    told, state = tmp_path / "told", "running" if "prolog" in script else "suspended"
    stand_ins = {
        "runuser": 'shift 3; exec "$@"',
        "gcr": f'shift 2; [ "$2" = ps ] && echo \'{JOBS % (state, state)}\' || {{ echo "$@" >>{told}; exit 3; }}',
        "squeue": f"echo {busy}" if busy else "true",
        "logger": f'echo "$@" >>{tmp_path}/log',
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / script).symlink_to(DEPLOY / "slurm-prolog.sh")
    path = f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"
    passes("env", f"PATH={path}", "sh", str(tmp_path / script))
    assert (told.read_text().splitlines() if told.exists() else []) == wanted
    assert not wanted or "exit 3" in (tmp_path / "log").read_text()
