"""Commands that are started with a stream closed, as by `gcr checkpoint llm 2>&-`."""

import sys

import pytest

from gcr.cli.main import main
from gcr.cli.progress import progress_view


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_command_does_its_work_with_a_closed_stream(monkeypatch, tmp_path, name):
    for variable in ("XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sys, name, None)
    assert main(["ps"]) == 0
    assert progress_view(as_json=False) is not None  # it asks stderr whether it is a terminal
