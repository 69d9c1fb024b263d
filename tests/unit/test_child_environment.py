"""The threat model of docs/security.md: what a job says of its environment does not decide what children load."""

import os
from pathlib import Path

import pytest
from users import OTHER, root_only

from gcr.daemon import worlds
from gcr.daemon.registration import registration
from gcr.daemon.worlds import child_environment, recorded_world, simulated_world
from gcr.errors import BackendMissing, UnsafeRuntime, UsageError
from gcr.job.decisions import DecisionRecord
from gcr.native import sim_dir
from gcr.protocol.operations.daemon import Register

EVIL = {
    "LD_LIBRARY_PATH": "/evil",
    "LD_PRELOAD": "/evil/it.so",
    "LD_AUDIT": "/evil/it.so",
    "PYTHONPATH": "/evil",
    "PYTHONHOME": "/evil",
    "PATH": "/evil",
    "ROCM_PATH": "/evil",
    "GCR_PLUGINS": "evil",
    "GCR_CONFIG": "/evil/config.toml",
    "GCR_NATIVE_DIR": "/evil",
    "GCR_SIM_evil": "/evil",
}


def machine_of(folder: Path) -> str:
    """The state of a simulated machine."""
    folder.mkdir(mode=0o700)
    (folder / "machine").touch()
    return str(folder)


@pytest.mark.parametrize("source", ["registration", "process", "journal"])
def test_nothing_that_a_job_says_of_its_environment_decides_what_children_load(tmp_path: Path, source: str) -> None:
    told = {**EVIL, "GCR_SIMULATE": "nvidia", "GCR_SIM_STATE": machine_of(tmp_path / "state"), "GCR_SIM_DEVICES": "3"}
    us = os.getuid()
    if source == "registration":
        world = registration(Register("t", ("python",), simulate="nvidia", sim_environment=told), us, os.getpid()).world
    elif source == "process":
        world = simulated_world("nvidia", told, us)
    else:
        world = recorded_world(DecisionRecord("llm", 1, "checkpoint", 0.0, (), "nvidia", True, told))
    seen = child_environment(world)
    assert not [(name, value) for name, value in seen.items() if "evil" in name + value]
    assert (seen["GCR_SIMULATE"], seen["GCR_SIM_DEVICES"]) == ("nvidia", "3")
    assert seen["LD_LIBRARY_PATH"].split(":")[0] == str(sim_dir("nvidia"))


def test_the_hint_at_our_own_simulator_asks_no_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "_by_plugin", lambda *_: pytest.fail("a plugin was asked"))
    folder = str(sim_dir("amd"))
    told = {"LD_LIBRARY_PATH": f"{folder}:/evil", "ROCM_PATH": folder, "GCR_SIM_STATE": machine_of(tmp_path / "s")}
    seen = child_environment(simulated_world("amd", told, os.getuid()))
    assert (seen["LD_LIBRARY_PATH"].split(":")[0], seen["ROCM_PATH"]) == (folder, folder)
    assert "evil" not in seen["LD_LIBRARY_PATH"]


@pytest.mark.parametrize("said", ["", "[]", '{"LD_LIBRARY_PATH": 1}', "{}"])
def test_a_plugin_that_says_no_variables_of_its_simulator_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    plugin = tmp_path / "python"
    plugin.write_text(f"#!/bin/sh\necho '{said}'\n")
    plugin.chmod(0o700)
    monkeypatch.setattr(worlds.sys, "executable", str(plugin))
    with pytest.raises(BackendMissing, match="simulated"):
        worlds._by_plugin("other", (("said", said),))


@pytest.mark.parametrize("path", ["", "/", "..", "../sim", "nvidia/..", "nvidia/x"])
def test_no_path_beside_our_simulators_is_taken_for_one(path: str) -> None:
    assert worlds._leads_to_ours(str(sim_dir("nvidia").parent / path)) is None


@pytest.mark.parametrize("case", ["others write", "a link", "not a machine's", "relative", "missing parent"])
def test_the_state_of_a_simulated_machine_is_in_a_folder_of_its_own(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    state = str(folder)
    if case == "others write":
        folder.chmod(0o777)
    elif case == "a link":
        state = str(tmp_path / "link")
        Path(state).symlink_to(folder)
    elif case == "not a machine's":
        (folder / "id_rsa").touch()
    else:
        state = "state" if case == "relative" else str(tmp_path / "none" / "state")
    told = {"LD_LIBRARY_PATH": str(sim_dir("nvidia")), "GCR_SIM_STATE": state}
    with pytest.raises(UnsafeRuntime):
        child_environment(simulated_world("nvidia", told, os.getuid()))


@root_only
def test_the_state_of_a_simulated_machine_is_no_other_users(tmp_path: Path) -> None:
    os.chown(machine_of(tmp_path / "state"), OTHER, OTHER)
    told = {"LD_LIBRARY_PATH": str(sim_dir("nvidia")), "GCR_SIM_STATE": str(tmp_path / "state")}
    with pytest.raises(UnsafeRuntime, match=f"belongs to user {OTHER}"):
        child_environment(simulated_world("nvidia", told, os.getuid()))


@pytest.mark.parametrize("name", ["-m", "--help", "a b", "", "x" * 64, 7, "a\n"])
def test_a_backends_name_is_no_option_of_a_child(name: object) -> None:
    with pytest.raises(UsageError):
        worlds.backend_name(name)
