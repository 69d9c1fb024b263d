"""Faults fire once, at their step, and only when asked for."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gcr import faults


def test_a_rule_fires_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "faults"
    rules.write_text("checkpoint.staged fail\nrestore.back fail\n")
    monkeypatch.setenv(faults.VARIABLE, str(rules))
    faults.reach("checkpoint.quiesced")
    with pytest.raises(faults.InjectedFault):
        faults.reach("checkpoint.staged")
    faults.reach("checkpoint.staged")
    assert rules.read_text() == "restore.back fail\n"


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    faults.reach("checkpoint.staged")


def test_a_rule_that_cannot_be_understood_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "faults"
    rules.write_text("checkpoint.staged explode\n")
    monkeypatch.setenv(faults.VARIABLE, str(rules))
    with pytest.raises(ValueError, match="explode"):
        faults.reach("checkpoint.staged")


def test_of_several_threads_at_a_step_one_is_struck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tmp_path / "faults"
    monkeypatch.setenv(faults.VARIABLE, str(rules))

    def strike(_number: int) -> bool:
        try:
            faults.reach("checkpoint.frozen")
        except faults.InjectedFault:
            return True
        return False

    with ThreadPoolExecutor(4) as threads:
        for _ in range(200):
            rules.write_text("checkpoint.frozen fail\n")
            assert sum(threads.map(strike, range(4))) == 1
