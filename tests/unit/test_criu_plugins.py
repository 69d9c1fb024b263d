"""The plugin that CRIU needs for a backend: declared, and found in one place."""

from pathlib import Path

import pytest

from gcr.criu import plugins
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
