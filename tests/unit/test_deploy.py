"""The recipes of examples/deploy, checked by the validators of their formats."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from gcr.config import Config, environment_name
from gcr.serve.config import load
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
    assert f"gpu-cr[nvidia,serve]=={__version__}'" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("kubernetes.yaml", ["Pod"]), ("serve.yaml", ["ConfigMap", "Deployment", "Service"])],
)
def test_manifests_are_such_by_the_schema_of_the_api(name: str, kinds: Sequence[str]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: make test")
    found = list(yaml.safe_load_all((DEPLOY / name).read_text()))
    assert [each["kind"] for each in found] == kinds
    for each in found:
        validate.validate(each, validate.latest_version(), strict=True)
        part = "spec" if "spec" in each else "metadata"
        with pytest.raises(validate.ValidationError):
            validate.validate({**each, part: {**each[part], "contaner": []}}, validate.latest_version(), strict=True)


def test_gcr_reads_the_models_of_the_deployment(tmp_path: Path) -> None:
    models, deployment, service = yaml.safe_load_all((DEPLOY / "serve.yaml").read_text())
    (text,), (container,) = models["data"].values(), deployment["spec"]["template"]["spec"]["containers"]
    token, file = tmp_path / "token", tmp_path / "gcr.toml"
    token.write_text("secret\n")
    token.chmod(0o600)
    home = "/home/server"
    assert f"{home}/token" in text
    file.write_text(text.replace(f"{home}/token", str(token)).replace(home, str(DEPLOY.parent)))
    config = load(file)
    assert ([*config.models], config.token, config.host) == (["one", "two"], "secret", "0.0.0.0")
    assert all((DEPLOY.parent / each.command[1]).is_file() for each in config.models.values())
    port = config.port
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    assert service["spec"]["ports"] == [{"port": port, "targetPort": "http"}]
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > config.grace
    assert container["command"][-1].endswith("gcr serve /etc/gcr/gcr.toml")


def test_gcr_reads_the_command_of_the_unit() -> None:
    """The models go on when the unit stops, so no signal may reach them."""
    unit = dict(line.split("=", 1) for line in (DEPLOY / "gcr-serve.service").read_text().splitlines() if "=" in line)
    assert unit["KillMode"] == "process"
    *interpreter, file = unit["ExecStart"].removeprefix("/usr/bin/env python3 ").split()
    assert (interpreter, file) == (["-m", "gcr", "serve"], "%h/.config/gcr/serve.toml")
    done = subprocess.run([sys.executable, *interpreter, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "FILE" in done.stdout


def test_every_variable_of_gcr_in_a_recipe_is_a_setting() -> None:
    (container,) = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["spec"]["containers"]
    unit = [line for line in (DEPLOY / "gcrd.service").read_text().splitlines() if line.startswith("Environment=")]
    named = {each["name"] for each in container["env"]} | {line.split("=")[1] for line in unit}
    assert len(named) == 2
    assert named <= {environment_name(name) for name in Config.__dataclass_fields__}


@pytest.mark.parametrize("name", ["gcrd.service", "gcr-serve.service"])
def test_systemd_understands_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("there is no systemd-analyze")
    passes(analyze, "--user", "--man=no", "verify", str(DEPLOY / name))


def test_the_pods_of_the_ray_cluster_are_such_by_the_schema_and_run_ray_under_gcr() -> None:
    """KubeRay's own schema is not at hand: its operator makes pods of these templates."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: make test")
    cluster = yaml.safe_load((DEPLOY / "raycluster.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        validate.validate(pod, validate.latest_version(), strict=True)
        (container,) = pod["spec"]["containers"]
        assert container["args"][0].endswith("exec gcr run --name ray -- $KUBERAY_GEN_RAY_START_CMD")
        (folders,) = pod["spec"]["initContainers"]
        assert {each["value"] for each in container["env"]} == {*folders["command"][4:]}
        assert folders["volumeMounts"] == container["volumeMounts"] == [{"name": "gcr", "mountPath": "/gcr"}]
    assert [group["rayStartParams"] for group in groups] == [{"num-gpus": "0"}, {}]


@pytest.mark.parametrize("script", ["slurm-prolog.sh", "slurm-job.sh"])
def test_scripts_pass_shellcheck(script: str) -> None:
    passes(program("shellcheck"), str(DEPLOY / script))


@pytest.mark.parametrize(
    ("images", "saved", "begun", "number"),
    [
        ([], True, "run --name train -- python train.py", 1),
        (["night"], False, "run --name train -- python train.py", 1),
        (["train-7.1", "train-7.10", "train-7.9", "train-70.99"], True, "restore --image train-7.10 --attach", 11),
    ],
)
def test_the_job_of_slurm_saves_its_program_when_told_and_goes_on_from_its_newest_image(
    tmp_path: Path, images: Sequence[str], saved: bool, begun: str, number: int
) -> None:
    """gcr and scontrol are stand-ins that write down what they are told; the program ends when it was saved."""
    told, run = tmp_path / "told", "kill -USR1 $PPID; for _ in $(seq 600); do [ -e over ] && exit 5; sleep 0.05; done"
    listing = json.dumps({"images": [{"name": name} for name in images]})
    checkpoint = f"touch over; exit {0 if saved else 4}"
    stand_ins = {
        "gcr": f'[ "$2" = images ] && echo \'{listing}\' && exit; echo "$@" >>{told}\n'
        f"case $1 in checkpoint) {checkpoint} ;; *) {run} ;; esac",
        "scontrol": f'echo "scontrol $@" >>{told}',
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    command = ["sh", str(DEPLOY / "slurm-job.sh"), "python", "train.py"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (5, ""), done.stderr
    save = f"checkpoint train --image train-7.{number} --stop --wait durable"
    assert told.read_text().splitlines() == [begun, save, *(["scontrol requeue 7"] if saved else [])]


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
