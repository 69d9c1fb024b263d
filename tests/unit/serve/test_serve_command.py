"""The command `gcr serve`, as far as it goes without a device."""

import json
import subprocess
import sys

import jsonschema
import pytest

from gcr import schemas
from gcr.cli.main import main
from gcr.listening import listening
from gcr.serve import seat
from gcr.serveerrors import ModelTaken, PortInUse


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "gcr.toml"
    path.write_text('[models.a]\ncommand = "a {port}"\n')
    return path


def said(capsys, code, *words):
    assert main(["--json", "serve", *map(str, words)]) == code
    document = json.loads(capsys.readouterr().out)
    name = "serve" if document["ok"] else "error"
    jsonschema.Draft202012Validator(schemas.load(name)).validate(document)
    return document


def test_a_file_is_checked_and_nothing_starts(file, capsys):
    assert said(capsys, 0, "--check", file)["models"] == ["a"]
    assert not list(file.parent.glob("gcr/*"))


def test_a_file_that_is_wrong(file, capsys):
    file.write_text("[models.a]\n")
    error = said(capsys, 2, "--check", file)["error"]
    assert error["code"] == "bad_serve_config"
    assert "models.a: Object missing required field `command`" in error["message"]


def test_an_unknown_policy_is_noticed_by_the_check(file, capsys):
    file.write_text(file.read_text() + '[serve]\npolicy = "mru"\n')
    assert said(capsys, 2, "--check", file)["error"]["code"] == "bad_serve_config"


@pytest.mark.parametrize("module", ["aiohttp", "uvloop", "prometheus_client"])
def test_without_its_libraries_it_says_what_to_type(module, file):
    program = f"import sys; sys.modules[{module!r}] = None; from gcr.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--json", "serve", str(file)]
    done = subprocess.run(command, capture_output=True, timeout=30)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["hint"]) == (3, "library_missing", "pip install 'gpu-cr[serve]'")
    assert module in error["message"]


def test_a_model_has_one_serve(file):
    with seat.taken(["a", "b"]):
        with pytest.raises(ModelTaken, match="has the model a"):
            seat.taken(["c", "a"])
        seat.taken(["c"]).close()  # the refused one has let go of it
    seat.taken(["a"]).close()


def test_a_port_has_one_listener():
    with listening("127.0.0.1", 0, "") as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port}"):
            listening("127.0.0.1", port, "")


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_of_another_machine(host):
    with pytest.raises(PortInUse, match=host):
        listening(host, 0, "")
