import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from gcr import config
from gcr.cli import environment
from gcr.cli.main import main
from gcr.config import Config, load
from gcr.errors import UsageError

DOCUMENT = Path(__file__).parents[2] / "docs/configuration.md"


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    for each in fields(Config):
        monkeypatch.delenv(config.environment_name(each.name), raising=False)
    monkeypatch.delenv("GCR_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "gcr").mkdir()
    return tmp_path / "gcr/config.toml"


def test_the_defaults_hold_where_nothing_is_said():
    found = load()
    assert found == Config()
    assert (found.quiesce_s, found.control_s, found.drain_s, found.pulse_ms) == (10, 60, 120, 20)
    assert (found.arena_share, found.segment_bytes, found.worker_idle_s, found.daemon_idle_s) == (
        0.5,
        1 << 30,
        600,
        3600,
    )


def test_file_then_environment_then_flags(file, monkeypatch):
    file.write_text("quiesce_s = 1\ncontrol_s = 1\ndrain_s = 1\n")
    monkeypatch.setenv("GCR_CONTROL_S", "2")
    monkeypatch.setenv("GCR_DRAIN_S", "2")
    found = load({"drain_s": 3, "batch": None})
    assert (found.quiesce_s, found.control_s, found.drain_s, found.batch) == (1, 2, 3, 64)


def test_another_file_may_be_named(monkeypatch, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("threads = 3")
    monkeypatch.setenv("GCR_CONFIG", str(other))
    assert load().threads == 3
    assert load(file=tmp_path / "missing.toml").threads == Config().threads


def test_an_empty_variable_says_nothing(monkeypatch):
    monkeypatch.setenv("GCR_BATCH", "")
    assert load().batch == 64


@pytest.mark.parametrize("text, value", [("on", True), ("TRUE", True), ("1", True), ("off", False), ("no", False)])
def test_words_for_true_and_false(monkeypatch, text, value):
    monkeypatch.setenv("GCR_PREPARE_ARENA", text)
    assert load().prepare_arena is value


@pytest.mark.parametrize(
    "name, text",
    [
        ("quiesce_s", "soon"),
        ("quiesce_s", "0"),
        ("quiesce_s", "-1"),
        ("quiesce_s", "nan"),
        ("arena_share", "1.5"),
        ("arena_share", "0"),
        ("batch", "254"),
        ("batch", "0"),
        ("batch", "6.5"),
        ("prepare_arena", "maybe"),
        ("allow_uid", "1000,root"),
        ("segment_bytes", "4096"),
        ("threads", "inf"),
    ],
)
def test_a_bad_value_is_refused_and_its_source_named(monkeypatch, name, text):
    variable = f"GCR_{name.upper()}"
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=variable):
        load()
    monkeypatch.delenv(variable)
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
        load({name: text})


@pytest.mark.parametrize("line", ["batch = 'many'", "batch = 6.5", "batch = true", "batch = [1]", "prepare_arena = 1"])
def test_a_bad_line_of_the_file_is_refused_and_the_file_named(file, line):
    file.write_text(line)
    with pytest.raises(UsageError, match=re.escape(str(file))):
        load()


@pytest.mark.parametrize("text", ["nonsense = 1", "batch = ", "\udcff"])
def test_a_file_that_is_wrong_is_refused_and_named(file, text):
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=re.escape(str(file))):
        load()


def test_an_unknown_flag_is_refused():
    with pytest.raises(UsageError, match="nonsense"):
        load({"nonsense": 1})


def test_settings_do_not_change_after_loading():
    with pytest.raises(FrozenInstanceError):
        load().batch = 5


def test_every_setting_says_what_it_means_and_has_a_default_within_its_bounds():
    for each in fields(Config):
        assert len(each.metadata["meaning"]) > 10
        assert each.type is str or each.metadata["least"] <= each.default <= each.metadata["most"]
        assert type(each.default) is each.type


def test_the_module_prints_the_table_of_the_document():
    printed = subprocess.run(
        [sys.executable, "-m", "gcr.config"], capture_output=True, text=True, timeout=30, check=True,
        env={"PYTHONPATH": str(Path(config.__file__).parents[1])},
    ).stdout  # fmt: skip
    assert printed.rstrip("\n") == config.markdown_table()
    assert printed.count("\n") == len(fields(Config)) + 2


@pytest.mark.skipif(not DOCUMENT.exists(), reason="docs/configuration.md is not written yet")
def test_the_document_shows_every_setting_as_the_table_has_it():
    assert config.markdown_table() in DOCUMENT.read_text(), "run: python -m gcr.config"


def test_a_file_that_is_named_must_be_there(monkeypatch, tmp_path):
    monkeypatch.setenv("GCR_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(UsageError, match="GCR_CONFIG names") as caught:
        load()
    assert caught.value.hint
    monkeypatch.setenv("GCR_CONFIG", "")
    load()


def test_a_variable_that_means_nothing_is_told_once_with_the_one_that_was_meant(monkeypatch, capfd):
    named = {"GCR_STROE": "/x", "GCR_NONSENSE_ALTOGETHER": "1", "GCR_STORE_S": "5", "GCR_SIM_OTHER": "1"}
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert main(["backends", "--json"]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "means nothing" in line]
    assert said == [
        "gcr: GCR_NONSENSE_ALTOGETHER is set and means nothing",
        "gcr: GCR_STROE is set and means nothing; did you mean GCR_STORE?",
    ]


def test_every_variable_that_gcr_reads_has_a_meaning():
    assert environment.misnamed(dict.fromkeys(map(config.environment_name, config.settings()))) == []
    assert environment.misnamed(name for name, _ in environment.VARIABLES) == []


def test_a_variable_that_a_test_reads_has_a_meaning():
    """A tester who sets it is not told that it has none."""
    sources = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    read = set(re.findall(r'environ\.get\("(GCR_[A-Z_]+)"', sources))
    assert "GCR_SGLANG_SOURCE" in read
    assert environment.misnamed(read) == []
