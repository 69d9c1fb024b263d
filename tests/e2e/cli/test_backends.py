"""Backends of strangers on the command line: broken ones are typed errors, and harm no other."""

import os
from pathlib import Path

import pytest

from gcr.facilities import FACILITIES

from .conftest import Gcr

RAISING = """
import pluggy
hookimpl = pluggy.HookimplMarker("gcr")
class Backend:
    name = "{name}"
    interface = {interface}
    def probe(self): raise KeyError("probe")
    def devices(self): raise KeyError("devices")
    def drain(self, device): raise KeyError("drain")
    def control(self): raise KeyError("control")
    def shim(self): raise KeyError("shim")
    def simulator(self): raise KeyError("simulator")
@hookimpl
def gcr_backends():
    return [Backend()]
"""


@pytest.fixture
def strangers(tmp_path: Path) -> dict[str, str]:
    """Modules: one raises in every method, two have one name, one is of another interface version."""
    for module, name, interface in (
        ("raising", "raising", 1),
        ("twin_a", "twin", 1),
        ("twin_b", "twin", 1),
        ("future", "future", 99),
    ):
        (tmp_path / f"{module}.py").write_text(RAISING.format(name=name, interface=interface))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "GCR_PLUGINS": "gcr_nvidia,raising,twin_a,twin_b,future"}


def test_every_backend_answers_the_seven_facilities(gcr: Gcr) -> None:
    (nvidia,) = gcr("--json", "--backend", "nvidia", "backends", GCR_PLUGINS="gcr_nvidia").json["backends"]
    answers = {each["name"]: each for each in nvidia["capabilities"]}
    assert [name for name in FACILITIES if name not in answers] == []
    assert len(answers) == len(nvidia["capabilities"])


def test_a_finding_is_told_once_and_what_waits_for_it_is_unknown(gcr: Gcr, tmp_path: Path) -> None:
    (tmp_path / "hip.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    out = gcr("--backend", "amd", "backends", PYTHONPATH=path).out
    assert out.count("not here") == 1
    rows = [line.split() for line in out.splitlines()]
    for name in ("runtime", "device", "descriptors", "handoff", "copyout", "device_hash"):
        assert ["unknown", name, "after", "bindings"] in rows
    assert ["no", "control_state", "HIP", "has", "no", "checkpoint", "call"] in rows


def test_broken_ones_are_listed_and_harm_no_other(gcr: Gcr, strangers: dict[str, str]) -> None:
    listed = gcr("--json", "backends", **strangers)
    assert listed.code == 0
    rows = listed.json["backends"]
    broken = {row["name"]: row["broken"] for row in rows if row["broken"]}
    assert "already there" in broken["twin_b"]
    assert "upgrade gcr" in broken["future"]
    by_name = {row["name"]: row for row in rows if not row["broken"]}
    assert set(by_name) >= {"nvidia", "raising", "twin"}
    (probe,) = by_name["raising"]["capabilities"]
    assert (probe["name"], probe["ok"]) == ("probe", False)
    assert "KeyError" in probe["evidence"]
    assert len(by_name["nvidia"]["capabilities"]) > len(FACILITIES)


@pytest.mark.parametrize("line", [("devices",), ("doctor",), ("ps",)], ids=" ".join)
def test_a_process_that_needs_none_of_it_is_not_harmed(gcr: Gcr, strangers: dict[str, str], line: tuple[str]) -> None:
    assert gcr("--json", *line, **strangers).code == gcr("--json", *line, GCR_PLUGINS="gcr_nvidia").code


@pytest.mark.parametrize("name", ["raising", "future", "nobody"])
def test_the_devices_of_a_broken_backend_are_a_typed_error(gcr: Gcr, strangers: dict[str, str], name: str) -> None:
    ran = gcr("--json", "--backend", name, "devices", **strangers)
    assert (ran.code, ran.json["error"]["code"]) == (3, "backend_missing")


@pytest.mark.parametrize("name", ["raising", "future", "nobody"])
def test_nothing_is_started_for_a_broken_backend(
    gcr: Gcr, strangers: dict[str, str], name: str, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    ran = gcr("--json", "--backend", name, "run", "--", "touch", str(mark), **strangers)
    assert (ran.code, ran.json["error"]["code"]) == (125, "backend_missing")
    assert not mark.exists()


@pytest.mark.parametrize(("name", "code"), [("raising", 125), ("future", 125), ("twin", 125), ("nobody", 2)])
def test_nor_for_a_simulated_device_that_cannot_be_had(
    gcr: Gcr, strangers: dict[str, str], name: str, code: int
) -> None:
    ran = gcr("--json", "run", "--simulate", name, "--", "true", **strangers)
    assert ran.code == code
    assert ran.json["error"]["code"] == ("usage" if code == 2 else "backend_missing")
