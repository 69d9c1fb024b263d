"""`gcr doctor` on the machine it runs on, with any devices: a page that a newcomer can read, and the same as JSON."""

import os
import re
from pathlib import Path

import pytest

from gcr.facilities import FACILITIES
from gcr.native import sim_dir

from .conftest import Gcr

VENDORS = ("amd", "ascend", "nvidia")
MOST_LINES = 45


def simulated(home: Path) -> dict[str, str]:
    """Returns the environment of a program under `gcr run --simulate nvidia`."""
    state = home / "machine"
    state.mkdir(mode=0o700)
    return {"LD_LIBRARY_PATH": str(sim_dir("nvidia")), "GCR_SIMULATE": "nvidia", "GCR_SIM_STATE": str(state)}


@pytest.mark.parametrize("asked", [None, *VENDORS])
def test_it_exits_0_and_is_no_wall_of_lines(gcr: Gcr, asked: str | None) -> None:
    ran = gcr(*(["--backend", asked] if asked else []), "doctor")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) <= MOST_LINES
    told = [line.strip() for line in lines if line.strip()]
    assert sorted(set(told)) == sorted(told), "something is said twice"
    assert re.match(r"gcr works|Ready|Not ready", lines[0])
    assert re.search(r"^Next$", ran.out, re.MULTILINE)


@pytest.mark.parametrize("asked", VENDORS)
def test_a_chosen_vendor_says_what_it_was_seen_on(gcr: Gcr, asked: str) -> None:
    ran = gcr("--backend", asked, "doctor")
    (head,) = [line for line in ran.out.splitlines() if line.startswith(f"{asked}: ")]
    assert ("simulated runtime only" in head) is (asked != "nvidia")
    for other in set(VENDORS) - {asked}:
        assert f"\n{other}" not in ran.out


def test_the_json_has_every_check_by_vendor_and_name(gcr: Gcr) -> None:
    ran = gcr("--json", "doctor")
    assert ran.code == 0
    rows = ran.json["checks"]
    assert {frozenset(row) for row in rows} == {frozenset({"name", "ok", "needed", "detail", "remedy"})}
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    assert {name.partition(":")[0] for name in names if ": " in name} == set(VENDORS)
    assert [name for name in names if name.partition(": ")[2] in FACILITIES] == []
    assert [row["name"] for row in rows if not row["ok"] and not row["remedy"]] == []


def test_a_vendor_is_missed_where_it_was_asked_for_or_has_a_device(gcr: Gcr, home: Path) -> None:
    def needed(*line: str, **env: str) -> set[str]:
        rows = gcr("--json", *line, "doctor", **env).json["checks"]
        return {vendor for row in rows if row["needed"] for vendor in VENDORS if row["name"].startswith(f"{vendor}: ")}

    world = simulated(home)
    having = {row["backend"] for row in gcr("--json", "devices", **world).json["devices"]}
    assert "nvidia" in having
    assert needed(**world) == having
    assert needed("--backend", "amd", **world) == {"amd"}


def test_all_of_it_is_listed_with_v(gcr: Gcr) -> None:
    listed = gcr("doctor", "-v").out
    for row in gcr("--json", "doctor").json["checks"]:
        assert row["name"] in listed


def without(tmp_path: Path, *modules: str) -> dict[str, str]:
    """The environment of a machine where these modules cannot be imported."""
    for name in modules:
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}


@pytest.mark.parametrize(
    ("line", "modules", "shown"),
    [
        ((), ("hip",), ["gcr demo"]),
        ((), ("hip", "cuda"), ["gcr --backend ascend demo"]),
        (("--backend", "ascend"), (), ["gcr --backend ascend demo"]),
        (("--backend", "amd"), ("hip",), []),
    ],
)
def test_the_demonstration_that_it_names_can_be_shown(
    gcr: Gcr, tmp_path: Path, line: tuple[str, ...], modules: tuple[str, ...], shown: list[str]
) -> None:
    ran = gcr(*line, "doctor", **without(tmp_path, *modules))
    assert re.findall(r"^  (gcr .*demo) ", ran.out, re.MULTILINE) == shown


def test_v_repeats_no_finding_and_prints_no_log(gcr: Gcr, tmp_path: Path) -> None:
    ran = gcr("--backend", "amd", "doctor", "-v", **without(tmp_path, "hip"))
    assert ran.out.count("not here") == 1
    assert re.search(r"^  unknown  amd: virtual_memory +after bindings$", ran.out, re.MULTILINE)
    assert ran.err == ""


def test_a_simulated_device_is_ready_and_called_simulated(gcr: Gcr, home: Path) -> None:
    ran = gcr("--backend", "nvidia", "doctor", **simulated(home))
    assert ran.code == 0
    assert ran.out.startswith("Ready: 2 SIMULATED devices.")
    assert "gcr run --name" in ran.out


def test_a_driver_that_is_too_old_is_missing_and_strict_says_3(gcr: Gcr, home: Path) -> None:
    world = {**simulated(home), "GCR_SIM_DRIVER": "550.54"}
    ran = gcr("--backend", "nvidia", "doctor", **world)
    assert ran.code == 0
    assert "Not ready" in ran.out
    assert re.search(r"MISSING  driver_branch +driver 550\.54\n +try: .*r570", ran.out)
    strict = gcr("--backend", "nvidia", "--json", "doctor", "--strict", **world)
    assert (strict.code, strict.json["error"]["code"]) == (3, "not_ready")
    assert "nvidia: driver_branch" in strict.json["error"]["message"]


def test_a_broken_plugin_is_on_the_page_and_harms_no_other(gcr: Gcr, tmp_path: Path) -> None:
    (tmp_path / "rotten.py").write_text("1 / 0")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ran = gcr("doctor", PYTHONPATH=path, GCR_PLUGINS=f"{os.environ.get('GCR_PLUGINS', '')},rotten")
    assert ran.code == 0
    assert re.search(r"note +plugin rotten +.*ZeroDivisionError", ran.out)
