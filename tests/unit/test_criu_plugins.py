"""The plugin that CRIU needs for a backend: declared, and found in one place."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gcr.criu import plugins
from gcr.criu.conversation import plugin_folder
from gcr.errors import CriuUnusable
from gcr.native import sim_dir

NAME = "amdgpu_plugin.so"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder the one where CRIU installs its plugins; it has none yet."""
    monkeypatch.setattr(plugins, "FOLDERS", (str(tmp_path / "none"), str(tmp_path)))
    monkeypatch.delenv("GCR_CRIU_PLUGINS", raising=False)
    return tmp_path


def test_a_backend_that_declares_none_needs_none(installed: Path) -> None:
    (installed / NAME).touch()
    assert plugins.plugins_of("nvidia", simulated=False) == []
    assert plugins.files_saved("nvidia", simulated=True) == []
    assert plugins.plugins_of("unheard-of", simulated=False) == []


def test_amds_is_where_criu_installs_it(installed: Path) -> None:
    with pytest.raises(CriuUnusable, match=f"CRIU has no {NAME}") as missing:
        plugins.plugins_of("amd", simulated=False)
    assert "criu_plugins" in missing.value.hint
    (installed / NAME).touch()
    assert plugins.plugins_of("amd", simulated=False) == [installed / NAME]
    assert plugins.files_saved("amd", simulated=False) == ["/dev/dri/renderD"]


def test_a_simulated_driver_has_its_own_and_the_setting_comes_first(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / NAME).touch()
    assert plugins.plugins_of("amd", simulated=True) == [sim_dir("amd") / "criu" / NAME]
    monkeypatch.setenv("GCR_CRIU_PLUGINS", str(tmp_path / "elsewhere"))
    for simulated in (True, False):
        with pytest.raises(CriuUnusable):
            plugins.plugins_of("amd", simulated)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the runtime directory, which is empty. Nothing may be made in the temporary directory."""
    for name, variable in (("run", "XDG_RUNTIME_DIR"), ("temporary", "TMPDIR")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    return tmp_path / "run"


def test_criu_gets_a_folder_with_these_plugins_alone_and_the_same_the_next_time(runtime: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one" / NAME, tmp_path / "two" / NAME
    folders = [plugin_folder(each) for each in ([], [one], [two], [one, tmp_path / "cuda_plugin.so"])]
    assert len({*folders}) == 4
    assert [{each.readlink() for each in folder.iterdir()} for folder in folders] == [
        set(),
        {one},
        {two},
        {one, tmp_path / "cuda_plugin.so"},
    ]
    (folders[1] / NAME).unlink()  # its maker was killed before it had made the link
    assert plugin_folder([one]) == folders[1]
    assert (folders[1] / NAME).readlink() == one


def test_a_plugin_that_gcr_has_not_chosen_is_refused(runtime: Path, tmp_path: Path) -> None:
    (plugin_folder([]) / "cuda_plugin.so").touch()
    with pytest.raises(CriuUnusable, match="has other plugins than none"):
        plugin_folder([])
    with pytest.raises(CriuUnusable, match=r"has other plugins than .*one.*two"):
        plugin_folder([tmp_path / "one" / NAME, tmp_path / "two" / NAME])


KILLED = """
import os, signal, sys
from pathlib import Path
from gcr.criu.conversation import conversation
with conversation(Path("/bin/true"), plugins=[Path("/usr/lib/criu/one.so")]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_helper_that_is_killed_leaves_nothing_that_grows(runtime: Path, tmp_path: Path) -> None:
    left = []
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", KILLED], timeout=60).returncode == -signal.SIGKILL
        left.append([*runtime.rglob("*")])
    assert left[0] == left[1] == left[2]
    assert not [*(tmp_path / "temporary").iterdir()]
